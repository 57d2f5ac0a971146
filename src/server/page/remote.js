// Conversations on the server's disk, each where a person chose so: one tree of messages in several browsers.
//
// conversation.remote: {version, unsent}: the version there that this browser has joined ("": none yet), and how many
// changes were saved since.  What is sent is the whole conversation with the texts of its documents, but for what is
// attached and not asked; never in mid-answer.  The server takes it if its version is still that one.  Else the trees are
// joined, by the ids of messages, and it is sent again: no message is lost, as none is ever deleted alone.  Names,
// settings, and which versions are shown, are those of the browser that sends last.
//
// Who deletes a conversation deletes it there.  Other browsers keep their copies, each as its own: a browser cannot tell
// a conversation that was deleted from a server that was given another folder.

const remote = (() => {
  const path = "v1/loam/conversations";
  let there = new Map();        // by id: what the server listed last
  const busy = new Map();       // by id: a promise, while one is sent or fetched
  const troubles = new Map();   // by id: why it is not there as it is here, in words

  const rowPath = (id) => `${path}/${id}`;
  const isWritten = (conversation) => conversation.messages.some((m) => m.writing);
  const isReady = (conversation) => server.saves && conversation?.remote && conversation.messages.length > 0 && !isWritten(conversation);

  // ---- two trees ----

  const isFurther = (one, other) => (one.made || 0) > (other.made || 0) || (one.made === other.made && one.sources && !other.sources);

  /** What is theirs and not mine is added.  Indices of mine stay. */
  function join(mine, theirs) {
    const known = new Map(mine.messages.map((m, i) => [m.id, i])), isChanged = mine.remote.unsent > 0, places = [];
    const placed = (index) => places[index] ?? -1;
    for (const message of theirs.messages) {
      const at = known.get(message.id) ?? mine.messages.push({ ...message, parent: placed(message.parent), last: -1 }) - 1;
      const { parent, last } = mine.messages[at];
      places.push(at);
      if (isFurther(message, mine.messages[at])) Object.assign(mine.messages[at], message, { parent, last });
    }
    const isChild = (index, parent) => (mine.messages[index]?.parent ?? parent) === parent;
    theirs.messages.forEach(({ last }, i) => {
      const message = mine.messages[places[i]];
      if ((!isChanged || message.last < 0) && isChild(placed(last), places[i])) message.last = placed(last);
    });
    if ((!isChanged || mine.first < 0) && isChild(placed(theirs.first), -1)) mine.first = placed(theirs.first);
    const { title, named, system, temperature, length } = theirs;
    if (!isChanged) Object.assign(mine, { title, named, system, temperature, length });
    mine.used = Math.max(mine.used, theirs.used);
  }

  // ---- to and fro ----

  async function contentOf(conversation) {
    await kept.needTexts(conversation);
    const { id, remote: own, ...sent } = conversation, documents = sent.messages.flatMap((m) => m.documents || []);
    return JSON.stringify({ ...sent, attached: [], texts: Object.fromEntries(documents.map((d) => [d.key, kept.textOf(d)])) });
  }

  async function fetchOne(id) {
    const { version, content } = await (await request(rowPath(id))).json();
    const { texts, ...theirs } = JSON.parse(content), mine = kept.get(id) || { ...kept.create(), id, used: 0 };
    await kept.takeTexts(texts);
    mine.remote ??= { version: "", unsent: 0 };
    if (isWritten(mine)) return;
    join(mine, theirs);
    mine.remote.version = version;
    there.set(id, { id, title: mine.title, version, changed: mine.used / 1000 });
    await kept.store(mine);
    if (id === talk.id) await heardOf({ kind: "saved", id });
  }

  async function sendOne(conversation) {
    const { id, title, remote: { version, unsent } } = conversation;
    const body = JSON.stringify({ title, version, content: await contentOf(conversation) });
    const sent = await (await request(rowPath(id), { method: "PUT", headers: { "Content-Type": "application/json" }, body })).json();
    const now = kept.get(id);
    there.set(id, { id, title, version: sent.version, changed: Date.now() / 1000 });
    if (!now?.remote) return;
    now.remote = { version: sent.version, unsent: now.remote.unsent === unsent ? 0 : now.remote.unsent };
    await kept.store(now);
  }

  /** It is in this browser alone from now on. */
  async function leave(conversation) {
    delete conversation.remote;
    troubles.delete(conversation.id);
    await kept.store(conversation);
  }

  async function settle(id) {
    for (;;) {
      const conversation = kept.get(id), row = there.get(id);
      if (!isReady(conversation)) return;
      try {
        if (row && row.version !== conversation.remote.version) await fetchOne(id);
        else if (conversation.remote.unsent > 0) await sendOne(conversation);
        else return;
      } catch (error) {
        if (error.status === 404) await leave(kept.get(id)); // it was deleted there
        else if (error.status === 409) there.set(id, { ...row, version: undefined });
        else throw error;
      }
    }
  }

  /** Makes it there what it is here, or the other way round, as soon as no answer is written.  One at a time. */
  function soon(id) {
    if (busy.has(id) || !isReady(kept.get(id))) return;
    const done = settle(id).then(() => troubles.delete(id), (error) => {
      if (leaving) return;
      troubles.set(id, error.message);
      if (id === talk.id) status.textContent = "Not on the server: " + error.message;
    });
    busy.set(id, done.finally(() => { busy.delete(id); list.draw(); }));
  }

  /** Asks what there is. */
  async function refresh() {
    const before = new Map(kept.all().map((c) => [c.id, c.remote?.version]));
    const { data, saves } = await request(path).then((response) => response.json(), () => ({})); // saved.js says why not
    if (!saves) return;
    there = new Map(data.map((row) => [row.id, row]));
    for (const conversation of kept.all()) {
      const { id } = conversation;
      if (there.has(id)) conversation.remote ??= { version: "", unsent: 1 };
      else if (conversation.remote?.version && conversation.remote.version === before.get(id)) await leave(conversation);
      if (conversation.remote?.unsent > 0 || id === talk.id) soon(id);
    }
    list.draw();
  }

  // ---- what a person does ----

  /** What other browsers have there, as far as the list shows it. */
  const others = () => [...there.values()].filter(({ id }) => !kept.get(id))
    .map(({ id, title, changed }) => ({ ...kept.create(), id, title, used: changed * 1000, remote: { version: "", unsent: 0 }, isElsewhere: true }));

  /** The conversation, once it is in this browser. */
  async function open(conversation) {
    if (conversation.isElsewhere) await fetchOne(conversation.id);
    return kept.get(conversation.id) || conversation;
  }

  /** Deletes it there. */
  async function remove({ id, remote: own }) {
    await busy.get(id);
    if (own) await request(rowPath(id), { method: "DELETE" }).catch((error) => { if (error.status !== 404) throw error; });
    there.delete(id);
  }

  /** It is saved by the caller. */
  async function choose(conversation, isThere) {
    const own = conversation.remote;
    if (isThere === Boolean(own)) return;
    for (const message of conversation.messages) message.id ??= kept.makeId(); // of before they had ids
    conversation.remote = isThere ? { version: "", unsent: 0 } : undefined;
    if (isThere) return;
    try {
      await remove({ ...conversation, remote: own });
    } catch (error) {
      conversation.remote = own;
      status.textContent = "Still on the server: " + error.message;
    }
    list.draw();
  }

  return { refresh, soon, others, open, remove, choose, trouble: (id) => troubles.get(id) };
})();
