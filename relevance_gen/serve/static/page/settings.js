/** Settings of written answers, stored in this browser: temperature, maximum length, and instructions to a chat model. */

import { at } from "./dom.js";

const STORED = "relevance_gen.settings";
const NUMBERS = ["temperature", "max_tokens"];  // fields of a request, and the names of their input elements

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

/** Return the fields of a request that the user has set. */
export function chosenFields() {
  const values = stored();
  return Object.fromEntries(NUMBERS.filter((name) => name in values).map((name) => [name, values[name]]));
}

/** Return the messages before a conversation: the user's instructions as a system message, if there are any. */
export function instructionMessages() {
  const { instructions } = stored();
  return instructions ? [{ role: "system", content: instructions }] : [];
}

/** Display the stored settings in the dialog. */
export function fillSettings() {
  const values = stored();
  for (const name of [...NUMBERS, "instructions"]) at(name).value = values[name] ?? "";
}

/** Store the settings of the dialog; empty fields have the server's defaults. */
export function storeSettings() {
  const values = {};
  for (const name of NUMBERS) if (at(name).value) values[name] = at(name).valueAsNumber;
  const instructions = at("instructions").value.trim();
  if (instructions) values.instructions = instructions;
  localStorage.setItem(STORED, JSON.stringify(values));
}
