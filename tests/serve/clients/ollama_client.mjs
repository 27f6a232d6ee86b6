// Ollama's own client for JavaScript; run against the server at SERVER_URL, in the folder with node_modules.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { Ollama } = createRequire(`${process.cwd()}/`)("ollama");
const headers = { Authorization: `Bearer ${process.env.SERVER_KEY}` };
const client = new Ollama({ host: process.env.SERVER_URL, headers });
const model = "relevance_gen";
const messages = [{ role: "user", content: "hello" }];
const options = { num_predict: 8, temperature: 0 };

const { models } = await client.list();
assert.ok(models.some((listed) => listed.model === model));
const shown = await client.show({ model });
assert.ok(shown.capabilities.includes("completion"));
assert.equal((await client.version()).version.split(".").length, 3);

const whole = await client.chat({ model, messages, options });
let text = "";
let last;
for await (const piece of await client.chat({ model, messages, options, stream: true })) {
  text += piece.message.content;
  last = piece;
}
assert.equal(text, whole.message.content);
assert.equal(last.done, true);
const raw = await client.generate({ model, prompt: "Once upon", raw: true, options });
text = "";
for await (const piece of await client.generate({ model, prompt: "Once upon", raw: true, options, stream: true })) {
  text += piece.response;
}
assert.equal(text, raw.response);

const { embeddings } = await client.embed({ model: "encoder", input: ["Cats purr.", "Dogs bark."] });
assert.equal(embeddings.length, 2);
const { embedding } = await client.embeddings({ model: "encoder", prompt: "Cats purr." });
assert.deepEqual(embedding, embeddings[0]);
await assert.rejects(client.chat({ model, messages, options: { top_k: -1 } }), /options.top_k/);
await assert.rejects(client.embed({ model: "encoder", input: "word ".repeat(100) }), /tokens for this encoder/);
assert.ok((await client.ps()).models.length);
