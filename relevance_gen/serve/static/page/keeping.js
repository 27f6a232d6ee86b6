/** Stores documents, questions and answers in this browser's IndexedDB, so that they survive a reload. */

const MOST_BYTES = 64 << 20;  // maximum size of all documents together
const MOST_TURNS = 200;

let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("relevance_gen", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("documents", { keyPath: "id" });
      request.result.createObjectStore("turns", { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds the database"));
  });
  return opened;
}

/** Run `work` in a transaction and return the result of its request; null if the database is not available. */
async function within(mode, work) {
  try {
    const database = await open();
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(["documents", "turns"], mode);
      const asked = work(transaction.objectStore("documents"), transaction.objectStore("turns"));
      transaction.oncomplete = () => resolve(asked?.result ?? true);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  } catch {
    return null;
  }
}

const sizeOf = ({ parts, file }) => parts.reduce((sum, part) => sum + 2 * part.text.length, 0) + (file?.size ?? 0);

let nBytes = new Map();  // document id to size

/** Store a document; return false if it does not fit or cannot be stored. */
export async function keepDocument({ id, name, parts, file }) {
  const size = sizeOf({ parts, file });
  if ([...nBytes.values()].reduce((sum, one) => sum + one, size) > MOST_BYTES) return false;
  nBytes.set(id, size);
  return (await within("readwrite", (documents) => documents.put({ id, name, parts, file }))) !== null;
}

export function dropDocument(id) {
  nBytes.delete(id);
  return within("readwrite", (documents) => documents.delete(id));
}

/** Store turns together with those of other tabs; only the latest turns are kept. */
export function keepTurns(turns) {
  return within("readwrite", (_, store) => {
    for (const turn of turns) store.put(turn);
    const ids = store.getAllKeys();
    ids.onsuccess = () => ids.result.slice(0, -MOST_TURNS).forEach((id) => store.delete(id));
  });
}

export function dropTurns(ids) {
  return within("readwrite", (_, store) => ids.forEach((id) => store.delete(id)));
}

/** Return the stored documents and turns in order of time. */
export async function kept() {
  const documents = (await within("readonly", (store) => store.getAll())) ?? [];
  nBytes = new Map(documents.map((one) => [one.id, sizeOf(one)]));
  return { documents, turns: (await within("readonly", (_, store) => store.getAll())) ?? [] };
}

export function forgetAll() {
  nBytes.clear();
  return within("readwrite", (documents, turns) => { documents.clear(); turns.clear(); });
}
