"use strict";
// What this browser keeps: conversations as trees of messages, the texts of their documents, and which of them other
// tabs are writing in.
//
// A conversation: {id, title, named, used, system, temperature, length, first, messages, attached, remote}.  named: by
// hand.  remote: of one that is on the server's disk, too (remote.js).
// A message: {id, parent, last, role, content, reasoning, documents, figures, reason, sources, system, seed, writing, failed,
// reads}.  An edited question and an answer that is asked again are further messages of the same parent; `last` is the
// one that is shown of those that follow, and `first` that of the beginning.  A document: {name, key, size, pages}; its text is
// kept by the key, apart from the conversation, which is written several times a second while it is answered.

const kept = (() => {
  const byId = new Map();   // every conversation, without the texts
  const texts = new Map();  // by key: those that were needed
  const tabs = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("loam");
  let base = null;          // a promise of the database
  let heard = () => {};     // called with what another tab has done: {kind, id}
  let failed = () => {};    // called with the words where something cannot be kept
  let changed = () => {};   // called with a conversation that has been saved

  const makeId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 10);

  // ---- the database ----

  function open() {
    base ??= new Promise((resolve, reject) => {
      const request = indexedDB.open("loam-conversations", 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("conversations", { keyPath: "id" });
        request.result.createObjectStore("texts");
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    return base;
  }

  async function run(mode, act) {
    const transaction = (await open()).transaction(["conversations", "texts"], mode);
    return new Promise((resolve, reject) => {
      const request = act(transaction.objectStore("conversations"), transaction.objectStore("texts"));
      transaction.commit(); // else a page that goes away before the request is answered takes it back
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error);
    });
  }

  async function write(act) {
    try {
      await run("readwrite", act);
    } catch (error) {
      failed(error?.name === "QuotaExceededError"
        ? "This browser has no more room: delete conversations, or what is new ends with this page."
        : "This browser keeps nothing of this page: conversations end with it.");
    }
  }

  async function load() {
    try {
      for (const found of await run("readonly", (conversations) => conversations.getAll())) byId.set(found.id, found);
    } catch { failed("This browser keeps nothing of this page: conversations end with it."); }
  }

  // ---- conversations ----

  const all = () => [...byId.values()].sort((a, b) => b.used - a.used);

  function create(like) {
    const { system = "", temperature = "", length = "" } = like || {};
    return { id: makeId(), title: "", named: false, used: Date.now(), system, temperature, length, first: -1, messages: [], attached: [] };
  }

  /** As it is on the server, or nowhere else. */
  function store(conversation) {
    byId.set(conversation.id, conversation);
    const done = write((conversations) => conversations.put(conversation));
    return done.then(() => tabs?.postMessage({ kind: "saved", id: conversation.id }));
  }

  function save(conversation) {
    if (conversation.remote) conversation.remote.unsent++;
    return store(conversation).then(() => changed(conversation));
  }

  /** What another tab has made of it; undefined: it is gone. */
  async function reload(id) {
    try {
      const found = await run("readonly", (conversations) => conversations.get(id));
      if (found) byId.set(id, found); else byId.delete(id);
    } catch { /* what is there stays */ }
    return byId.get(id);
  }

  const documentsOf = (conversation) => [...conversation.attached, ...conversation.messages.flatMap((m) => m.documents || [])];

  /** With its texts, which stay in memory: it may come back. */
  async function remove(conversation) {
    await needTexts(conversation);
    byId.delete(conversation.id);
    await write((conversations, documents) => {
      for (const { key } of documentsOf(conversation)) documents.delete(key);
      return conversations.delete(conversation.id);
    });
    tabs?.postMessage({ kind: "removed", id: conversation.id });
  }

  async function restore(conversation) {
    await takeTexts(Object.fromEntries(documentsOf(conversation).map((d) => [d.key, textOf(d)])));
    await save(conversation);
  }

  // ---- texts ----

  async function addText(name, text, pages = 0) {
    const document = { name, key: makeId(), size: new Blob([text]).size, pages };
    texts.set(document.key, text);
    await write((_, documents) => documents.put(text, document.key));
    return document;
  }

  /** Texts by key, as they came from elsewhere. */
  async function takeTexts(more) {
    for (const [key, text] of Object.entries(more)) texts.set(key, text);
    await write((_, documents) => Object.entries(more).map(([key, text]) => documents.put(text, key))[0] ?? documents.count());
  }

  /** Makes textOf ready. */
  async function needTexts(conversation) {
    for (const { key } of documentsOf(conversation)) {
      if (texts.has(key)) continue;
      try { texts.set(key, await run("readonly", (_, documents) => documents.get(key)) ?? ""); } catch { texts.set(key, ""); }
    }
  }

  const textOf = (document) => texts.get(document.key) ?? "";

  // ---- other tabs ----

  const lockOf = (id) => "loam-" + id;

  /** Keeps other tabs from writing in the conversation, from whenHeld on, until the function that it gives is called. */
  function hold(id, whenHeld = () => {}) {
    let release;
    const over = new Promise((resolve) => { release = resolve; });
    addEventListener("pagehide", release, { once: true }); // a page that may be shown again keeps its locks else
    navigator.locks?.request(lockOf(id), () => { whenHeld(release); return over; });
    return release;
  }

  /** The same once no other tab does, which is waited for: waits() says so.  Where a browser has no locks (plain http from
   * another machine) the other tab is asked, and null: it writes. */
  async function claim(id, waits) {
    if (navigator.locks) {
      if ((await navigator.locks.query()).held.some(({ name }) => name === lockOf(id))) waits();
      return new Promise((resolve) => { hold(id, resolve); });
    }
    const isFree = !tabs || await new Promise((resolve) => {
      const hear = ({ data }) => { if (data.kind === "writes" && data.id === id) resolve(false); };
      tabs.addEventListener("message", hear);
      tabs.postMessage({ kind: "asks", id });
      setTimeout(() => { tabs.removeEventListener("message", hear); resolve(true); }, 150);
    });
    if (!isFree) waits();
    return isFree ? hold(id) : null;
  }

  /** isWriting(id): whether this tab is. */
  function bind(whenHeard, whenFailed, whenChanged, isWriting) {
    heard = whenHeard;
    failed = whenFailed;
    changed = whenChanged;
    tabs?.addEventListener("message", ({ data }) => {
      if (data.kind === "asks") { if (isWriting(data.id)) tabs.postMessage({ kind: "writes", id: data.id }); }
      else if (data.kind !== "writes") { if (data.kind === "removed") byId.delete(data.id); heard(data); }
    });
  }

  return { bind, load, all, get: (id) => byId.get(id), create, save, store, reload, remove, restore,
    makeId, addText, takeTexts, needTexts, textOf, hold, claim };
})();

/** The tree of a conversation's messages; an index of -1 is what is before the first one. */
const tree = {
  add(conversation, parent, message) {
    conversation.messages.push({ id: kept.makeId(), parent, last: -1, ...message });
    tree.show(conversation, conversation.messages.length - 1);
    return conversation.messages.length - 1;
  },

  /** Makes it the one that is shown of its versions. */
  show(conversation, index) {
    const { parent } = conversation.messages[index];
    if (parent < 0) conversation.first = index; else conversation.messages[parent].last = index;
  },

  versions: (conversation, index) => conversation.messages.map((_, i) => i)
    .filter((i) => conversation.messages[i].parent === conversation.messages[index].parent),

  /** The indices of what is shown, in order. */
  shown(conversation) {
    const path = [];
    for (let i = conversation.first; i >= 0; i = conversation.messages[i].last) path.push(i);
    return path;
  },

  /** The indices of what leads to this one, which is the last. */
  before(conversation, index) {
    const path = [];
    for (let i = index; i >= 0; i = conversation.messages[i].parent) path.unshift(i);
    return path;
  },
};
