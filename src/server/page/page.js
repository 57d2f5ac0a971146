// Asking: what goes to the server, and how its answers come.

const log = $("log"), question = $("question"), status = $("status");
const LENGTH_DEFAULT = 2048; // tokens of an answer; Go on makes more
const SAVE_MS = 300;         // between two savings of an answer that comes

/** The conversation that is shown. */
let talk = kept.create();
/** The requests that run, by conversation, one of each: {controller, conversation, index, reads, progress, ended, finish}.
 * index: of the answer that is written, or -1.  reads: documents, and nobody waits for them.  progress: {text, part} */
const runs = new Map();
/** What was dropped and cannot be read: {name, words} */
let refused = [];
/** {model, context, saves}: saves: it keeps documents */
let server = { model: "", context: 0, saves: false };
let leaving = false; // the page is going: what fails now has not failed

const running = () => runs.get(talk.id) || null;
const isBusy = () => running() !== null && !running().reads;

// ---- requests ----

function headers(more) {
  const key = sessionStorage.getItem("loam-key");
  return { ...(key ? { Authorization: "Bearer " + key } : {}), ...more };
}

/** What a person can do about an error of the server: its words, or better ones. */
function wordsOf(status, error) {
  if (error.code === "context_length_exceeded")
    return `Too long: ${count(error.n_prompt_tokens)} tokens, of which this server takes ${count(error.n_ctx)} at once ` +
      "(loam serve -c N, as far as the model goes). Remove a document, or ask in a new conversation.";
  if (status === 401) return "This server asks for a key.";
  if (status === 429) return "The server is busy: " + error.message + ". Ask again in a moment.";
  return error.message || "The server answers " + status + ".";
}

/** The response, or an error in words.  A key that is asked for has a field. */
async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server does not answer. Does loam serve still run?");
  }
  if (response.ok) return response;
  let error = {};
  try { error = (await response.json()).error || {}; } catch { /* no JSON: the status says it */ }
  if (response.status === 401) askKey();
  throw Object.assign(new Error(wordsOf(response.status, error)), { status: response.status });
}

const post = (path, body, signal) => request(path,
  { method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

/** Yields the JSON of each `data:` line; an error in it is thrown.  whole: until [DONE], or it has been cut. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Error("The connection to the server broke.");
    });
    if (done) throw new Error("The server ended before the answer did.");
    held += value;
    let end;
    while ((end = held.indexOf("\n")) >= 0) {
      const line = held.slice(0, end).replace(/\r$/, "");
      held = held.slice(end + 1);
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(wordsOf(0, event.error));
      yield event;
    }
  }
}

const joined = (documents) => documents.map((d) => kept.textOf(d).replace(/\n+$/, "")).join("\n\n");

/** The documents of a question come first, so that later questions share their saved prefix. */
function wholeText(message) {
  return [joined(message.documents || []), message.content].filter((part) => part !== "").join("\n\n");
}

/** The messages that lead to this one, with it: as it was asked, under the system prompt of then. */
function conversationOf(conversation, index, system) {
  const sent = tree.before(conversation, index).map((i) => conversation.messages[i]).filter((m) => m.role === "user" || m.content)
    .map((m) => ({ role: m.role, content: m.role === "user" ? wholeText(m) : m.content }));
  return system ? [{ role: "system", content: system }, ...sent] : sent;
}

/** Posts a chat request; calls on(event) for each of the stream. */
async function chat(body, signal, on) {
  const response = await post("v1/chat/completions", { stream: true, return_progress: true,
    stream_options: { include_usage: true }, ...body }, signal);
  for await (const event of events(response)) on(event);
}

// ---- messages ----

function figuresText(message) {
  const figures = message.figures || {}, parts = [];
  if (figures.prompt !== undefined) {
    const read = figures.prompt - (figures.reused || 0);
    parts.push(figures.reused ? `${count(read)} read, ${count(figures.reused)} known` : `${count(read)} read`);
  }
  if (figures.answer) parts.push(`${count(figures.answer)} tokens`);
  if (figures.rate) parts.push(`${figures.rate.toFixed(1)} a second`);
  if (message.reason === "length") parts.push("cut at the limit");
  if (message.reason === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

/** Where a message has other versions: which one is shown, and the way to them. */
function versionsOf(conversation, index) {
  const all = tree.versions(conversation, index), at = all.indexOf(index);
  if (all.length < 2) return null;
  const what = conversation.messages[index].role === "user" ? "question" : "answer";
  const go = (step) => button(step < 0 ? "‹" : "›", `The ${step < 0 ? "earlier" : "later"} version of the ${what}`, () => {
    tree.show(conversation, all[at + step]);
    kept.save(conversation);
    draw(all[at + step]);
    log.querySelector(`article[data-index="${all[at + step]}"] .versions button:${step < 0 ? "first" : "last"}-of-type`)?.focus();
  }, true);
  const before = go(-1), after = go(1);
  before.dataset.end = at === 0 ? "true" : "";
  after.dataset.end = at + 1 === all.length ? "true" : "";
  return element("span", { class: "versions", role: "group", "aria-label": `Version ${at + 1} of ${all.length} of the ${what}` },
    before, element("span", {}, `${at + 1}/${all.length}`), after);
}

function userArticle(index) {
  const message = talk.messages[index];
  const read = (message.documents || []).length > 0
    ? element("ul", { class: "read", "aria-label": "Documents" }, ...message.documents.map((d) => element("li", {}, d.name)))
    : null;
  return element("article", { class: "user", "data-index": index, "aria-label": "You" }, read,
    element("div", { class: "text" }, message.content),
    element("footer", {}, versionsOf(talk, index),
      button("Edit", "Ask differently from here; this stays as a version", () => edit(index), true),
      button("Copy", "Copy the question", (e) => copy(message.content, e.target))));
}

function answerArticle(index) {
  const conversation = talk, message = conversation.messages[index];
  const article = element("article", { class: "assistant", "data-index": index, "aria-label": "Answer" },
    element("div", { class: "text" }), element("p", { class: "error", role: "alert", hidden: true }),
    element("footer", {}, versionsOf(conversation, index),
      element("button", { type: "button", class: "copy", title: "Copy the answer", onclick: (e) => copy(message.content, e.target) }, "Copy"),
      button("Retry", "Answer again; this stays as a version", () => retry(index), true),
      element("button", { type: "button", class: "go-on waits", title: "Go on with this answer", onclick: () => goOn(index) }, "Go on"),
      element("button", { type: "button", class: "ask-sources waits", title: "Which sentences this answer looked at",
        "aria-expanded": "false", onclick: () => sources.toggle(article, index) }, "Sources"),
      element("span", { class: "figures" })));
  fillAnswer(article, message);
  return article;
}

function fillAnswer(article, message) {
  const text = article.querySelector(".text"), isCut = Boolean(message.failed) || ["length", "stopped"].includes(message.reason);
  text.replaceChildren();
  if (message.reasoning) {
    text.append(element("details", { class: "thought", open: !message.content },
      element("summary", {}, "Thoughts"), message.reasoning));
  }
  text.append(rendered(message.content || ""));
  text.classList.toggle("wait", Boolean(message.writing));
  article.querySelector(".figures").textContent = figuresText(message);
  article.querySelector(".copy").hidden = !message.content;
  article.querySelector(".go-on").hidden = !isCut || Boolean(message.writing) || !message.content || Boolean(message.reasoning);
  article.querySelector(".ask-sources").hidden = !message.content || Boolean(message.writing);
  tellError(article, message.failed);
}

function tellError(article, words) {
  const error = article.querySelector(":scope > .error");
  error.textContent = words || "";
  error.hidden = !words;
}

const articleOf = (conversation, index) => conversation === talk ? log.querySelector(`article[data-index="${index}"]`) : null;

/** All of the conversation, or what begins at this message. */
function draw(from = -1) {
  const path = tree.shown(talk), first = Math.max(0, path.indexOf(from)), articles = [...log.querySelectorAll("article")];
  if (from < 0) log.replaceChildren();
  log.querySelector(".welcome")?.remove();
  articles.slice(first).forEach((article) => article.remove());
  if (path.length === 0) {
    log.append(element("div", { class: "welcome" }, element("h2", {}, "Ask about a long document"),
      element("p", {}, "Drop files anywhere. What was read once is kept and not read again.")));
  }
  path.slice(first).forEach((i) => log.append(talk.messages[i].role === "user" ? userArticle(i) : answerArticle(i)));
  drawDocuments();
  showRunning();
  if (from < 0) toEnd();
}

function drawDocuments() {
  const chip = (name, more, remove) => element("li", { class: more.failed && "failed" }, element("span", {}, name),
    element("span", { class: "figures" }, more.failed || (more.pages ? `${count(more.pages)} page${more.pages > 1 ? "s" : ""}` : size(more.size))),
    element("button", { type: "button", "aria-label": (more.failed ? "Dismiss " : "Remove ") + name, onclick: remove }, "×"));
  $("documents").replaceChildren(...talk.attached.map((d, i) => chip(d.name, d, () => removeDocument(i))),
    ...refused.map((d, i) => chip(d.name, { failed: d.words }, () => { refused.splice(i, 1); drawDocuments(); question.focus(); })));
}

function tellDocuments(words) { $("documents-error").textContent = words; }

const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
const toEnd = () => { log.scrollTop = log.scrollHeight; };

// ---- what runs ----

function showRunning() {
  const run = running(), busy = isBusy();
  $("send").hidden = busy;
  $("stop").hidden = run === null;
  log.setAttribute("aria-busy", String(run !== null));
  log.querySelectorAll(".waits").forEach((b) => { b.disabled = busy || b.dataset.end === "true"; });
  const { text, part } = run?.progress || { text: "", part: 0 };
  $("progress-line").hidden = text === "";
  $("progress-text").textContent = text || "Reading";
  $("progress").value = part;
}

/** One request at a time of each conversation. */
function beginRunning(conversation, what) {
  runs.get(conversation.id)?.controller.abort();
  let finish;
  const ended = new Promise((resolve) => { finish = resolve; });
  const run = { controller: new AbortController(), conversation, index: -1, reads: false, progress: { text: "", part: 0 }, ended, finish, ...what };
  runs.set(conversation.id, run);
  if (conversation === talk) status.textContent = "";
  showRunning();
  list.draw();
  map.soon();
  return run;
}

function endRunning(run) {
  run.finish();
  if (runs.get(run.conversation.id) !== run) return; // another one has begun
  runs.delete(run.conversation.id);
  showRunning();
  list.draw();
  map.soon();
}

function showProgress(run, text, part) {
  run.progress = { text, part };
  if (run === running()) showRunning();
}

const say = (run, words) => { if (run.conversation === talk) status.textContent = words; };

/** Tokens read so far: {processed, total, cache}. */
function noteProgress(run, progress) {
  if (!progress || !progress.total) return;
  const fresh = progress.processed - (progress.cache || 0);
  const seconds = (performance.now() - run.began) / 1000;
  const rest = fresh > 0 ? seconds * (progress.total - progress.processed) / fresh : 0;
  showProgress(run, `Reading ${count(progress.processed)} of ${count(progress.total)} tokens` +
    (rest > 3 ? `, ${rest < 90 ? Math.round(rest) + " s" : Math.round(rest / 60) + " min"} left` : ""), progress.processed / progress.total);
}

// ---- answering ----

/** Begins another answer to a question. */
function answer(conversation, asked) {
  const index = tree.add(conversation, asked, { role: "assistant", content: "", reasoning: "", system: conversation.system,
    seed: Math.floor(Math.random() * 2 ** 31), made: 0 });
  return write(conversation, index);
}

/** The documents that are being read come first: what they have read is complete then.  false: it was stopped. */
async function readingEnds(reading, index) {
  reading.reads = false;
  reading.index = index;
  showRunning();
  await reading.ended;
  return !reading.controller.signal.aborted;
}

function noteEvent(run, message, event, before) {
  noteProgress(run, event.prompt_progress);
  const { usage, timings } = event, choice = (event.choices || [])[0];
  if (usage) {
    const reused = (usage.prompt_tokens_details || {}).cached_tokens || 0;
    message.made = before + usage.completion_tokens;
    message.figures = { ...message.figures, prompt: usage.prompt_tokens, reused, answer: message.made };
  }
  if (timings?.predicted_per_second) message.figures = { ...message.figures, rate: timings.predicted_per_second };
  if (!choice) return;
  const { content = "", reasoning_content: thought = "" } = choice.delta || {};
  if (content || thought) {
    showProgress(run, "", 0);
    message.made++;
  }
  message.content += content || "";
  message.reasoning += thought || "";
  if (choice.finish_reason) message.reason = choice.finish_reason;
}

/** Writes the answer, from its beginning or on from what there is of it: the server takes that as the answer's first
 * words.  Behind thoughts it begins anew, by the same seed: templates do not take thoughts back.  release: kept.hold's. */
async function write(conversation, index, release = kept.hold(conversation.id)) {
  const message = conversation.messages[index], reading = runs.get(conversation.id);
  if (message.reasoning) Object.assign(message, { content: "", reasoning: "", made: 0 });
  message.content = message.content.trimEnd(); // templates take white space off
  Object.assign(message, { writing: true, failed: undefined, reason: undefined, sources: undefined });
  conversation.used = Date.now();
  kept.save(conversation);
  if (conversation === talk) {
    draw(index);
    toEnd();
  }
  const isRead = !reading?.reads || await readingEnds(reading, index);
  if (isRead) await receive(conversation, index);
  else message.failed = "Stopped before the answer began.";
  if (!leaving && kept.get(conversation.id)) { // or it was deleted
    message.writing = false;
    const isSaved = kept.save(conversation), article = articleOf(conversation, index);
    if (article) fillAnswer(article, message);
    saved.refresh();
    await isSaved;
  }
  release();
}

async function receive(conversation, index) {
  const message = conversation.messages[index], limit = Number(conversation.length) || LENGTH_DEFAULT, before = message.made;
  const run = beginRunning(conversation, { index, began: performance.now() });
  let pending = false, savedAt = performance.now();
  const redraw = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      const article = articleOf(conversation, index), follow = atEnd();
      pending = false;
      if (article && message.writing) fillAnswer(article, message);
      if (article && follow) toEnd();
    });
  };
  try {
    const body = { messages: conversationOf(conversation, index, message.system), seed: message.seed,
      max_tokens: limit - before % limit }; // of one that was cut at the limit as many again
    if (conversation.temperature !== "") body.temperature = Number(conversation.temperature);
    else if (conversation.messages.some((m) => m.documents?.length > 0)) body.temperature = server.documentTemperature;
    await chat(body, run.controller.signal, (event) => {
      noteEvent(run, message, event, before);
      redraw();
      if (performance.now() - savedAt < SAVE_MS) return;
      savedAt = performance.now();
      kept.save(conversation);
    });
    say(run, "Answered.");
  } catch (error) {
    if (error.name !== "AbortError") message.failed = error.message;
    else if (message.content === "") message.failed = "Stopped before the answer began.";
    else message.reason = "stopped";
    if (error.name === "AbortError") say(run, "Stopped. What was read stays read.");
  }
  if (!leaving) endRunning(run);
}

const unfinished = (conversation) => tree.shown(conversation).findLast((i) => conversation.messages[i].writing);

/** Where the page went away in mid-answer, and no other tab writes it, nor has meanwhile. */
async function resume(conversation) {
  const { id } = conversation;
  if (unfinished(conversation) !== undefined && !runs.has(id)) {
    const release = await kept.claim(id, () => { if (id === talk.id) status.textContent = "Another tab is writing this answer."; });
    const now = release && !runs.has(id) ? await kept.reload(id) : undefined;
    if (now) takePartial(now);
    const index = now && unfinished(now);
    if (index === undefined) {
      release?.();
      if (now) heardOf({ kind: "saved", id });
      return;
    }
    await kept.needTexts(now);
    if (id === talk.id) talk = now;
    write(now, index, release);
  } else if (conversation === talk && talk.attached.length > 0 && !runs.has(id)) {
    readAhead();
  }
}

// ---- what a person does ----

function send() {
  const content = question.value.trim();
  if (content === "" && talk.attached.length === 0) return;
  if (isBusy()) { status.textContent = "One moment: the last answer is not complete. Esc stops it."; return; }
  if (opening !== null) { status.textContent = "One moment: a file is being opened."; opening.then(send); return; }
  if (content === "") { question.focus(); status.textContent = "Now ask about it."; return; }
  const index = tree.add(talk, tree.shown(talk).at(-1) ?? -1, { role: "user", content, documents: talk.attached });
  talk.attached = [];
  refused = [];
  tellDocuments("");
  if (!talk.named && talk.title === "") talk.title = titleOf(content);
  draw(index);
  question.value = "";
  fitQuestion();
  keepDraft();
  answer(talk, index);
}

function titleOf(content) {
  const line = content.split("\n")[0].trim();
  return line.length <= 60 ? line : line.slice(0, 60).replace(/\s+\S*$/, "") + " …";
}

function stop() { running()?.controller.abort(); }

function retry(index) {
  if (isBusy()) return;
  answer(talk, talk.messages[index].parent);
}

function goOn(index) {
  if (!isBusy()) write(talk, index);
}

/** The question becomes a field; asking it makes another version, and the earlier one stays. */
function edit(index) {
  if (isBusy()) return;
  const conversation = talk, message = talk.messages[index], article = articleOf(talk, index);
  const field = element("textarea", { rows: String(Math.min(12, message.content.split("\n").length + 1)), "aria-label": "Question" });
  field.value = message.content;
  const done = () => {
    const now = userArticle(index);
    article.replaceWith(now);
    [...now.querySelectorAll("footer > button")].at(-2).focus();
  };
  const ask = () => {
    const content = field.value.trim();
    if (content === "" || isBusy()) return;
    const version = tree.add(conversation, message.parent, { role: "user", content, documents: message.documents });
    draw(version);
    answer(conversation, version);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); done(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
  });
  article.querySelector(".text").replaceWith(field);
  article.querySelector("footer").replaceChildren(button("Ask", "Ask this instead", ask), button("Cancel", "Keep it as it was", done));
  field.focus();
}

// ---- documents ----

let opening = null; // a promise, while files are being opened

/** What the server makes of a file: {text, pages}, or an error in words.  It waits for a server that is loading. */
async function textOfFile(file) {
  const path = "v1/loam/text?name=" + encodeURIComponent(shortened(file.name));
  for (;;) {
    try {
      return await (await request(path, { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file })).json();
    } catch (error) {
      if (error.status !== 503) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 1000); });
    }
  }
}

/** What was dropped: a file, or all those of a folder and the folders in it, by their names, numbers by value.  Names
 * that begin with a dot are left out, as by `loam run -f FOLDER`. */
async function filesOf(entry) {
  const of = (begin) => new Promise(begin);
  if (entry.isFile) return [new File([await of((done, fail) => entry.file(done, fail))], entry.fullPath.slice(1))];
  const reader = entry.createReader(), inside = [], files = [];
  for (let some; (some = await of((done, fail) => reader.readEntries(done, fail))).length > 0;) inside.push(...some);
  inside.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  for (const one of inside.filter(({ name }) => !name.startsWith("."))) files.push(...await filesOf(one));
  return files;
}

/** files: an array, or a promise of one of arrays. */
async function addFiles(files) {
  const conversation = talk, mine = opening = Promise.all([opening, openFiles(conversation, files)]);
  await mine;
  if (opening === mine) opening = null;
  attachedNow(conversation);
}

async function openFiles(conversation, files) {
  const found = await Promise.resolve(files).catch((error) => { refused.push({ name: "The folder", words: error.message }); });
  for (const file of (found || []).flat()) {
    try {
      const { text, pages } = await textOfFile(file);
      if (text.trim() === "") throw new Error("is empty");
      conversation.attached.push(await kept.addText(file.name, text, pages));
    } catch (error) {
      refused.push({ name: file.name, words: error.message.replace(shortened(file.name) + ": ", "") });
    }
    if (conversation === talk) drawDocuments();
  }
}

/** What is attached has changed. */
function attachedNow(conversation) {
  kept.save(conversation);
  if (conversation !== talk) return;
  drawDocuments();
  tellDocuments("");
  const run = running();
  if (run?.reads) run.again = true;
  else if (run === null && talk.attached.length > 0) readAhead();
  question.focus();
}

/** Reads what was attached while the question is typed.  Behind a conversation, and where nothing is saved, that is a
 * request for no tokens; else an upload, which has a name in the list of documents. */
async function readAhead() {
  const conversation = talk, { attached, system } = conversation, path = tree.shown(conversation);
  const run = beginRunning(conversation, { reads: true, began: performance.now() }), { signal } = run.controller;
  showProgress(run, "Reading", 0);
  try {
    if (server.saves && path.length === 0) {
      const name = shortened(attached.map((d) => d.name).join(", "));
      const response = await post("v1/loam/documents", { name, text: joined(attached), stream: true, ...(system ? { system } : {}) }, signal);
      for await (const event of events(response)) noteProgress(run, { ...event, cache: event.cached });
    } else {
      const messages = [...conversationOf(conversation, path.at(-1) ?? -1, system), { role: "user", content: joined(attached) }];
      await chat({ messages, max_tokens: 0 }, signal, (event) => noteProgress(run, event.prompt_progress));
    }
    if (run.reads) say(run, "Read. Ask about it.");
  } catch (error) {
    if (error.name === "AbortError") say(run, "Stopped. What was read stays read.");
    else if (conversation === talk) tellDocuments(error.message);
  }
  if (leaving) return;
  endRunning(run);
  saved.refresh();
  if (run.again && run.reads && running() === null && conversation === talk && talk.attached.length > 0 && !signal.aborted) readAhead();
}

/** As a name of a document: at most 255 bytes without control characters. */
function shortened(name) {
  let short = name.replace(/[\u0000-\u001f\u007f]/g, " ");
  while (new Blob([short]).size > 255) short = [...short].slice(0, -1).join("");
  return short;
}

function removeDocument(index) {
  talk.attached.splice(index, 1);
  drawDocuments();
  tellDocuments("");
  kept.save(talk);
  question.focus();
  if (running()?.reads) stop();
  if (talk.attached.length > 0 && !isBusy()) readAhead();
}

// ---- the conversation that is shown ----

async function show(conversation) {
  keepDraft();
  await kept.needTexts(conversation);
  talk = conversation;
  refused = [];
  tellDocuments("");
  status.textContent = "";
  sessionStorage.setItem("loam-shown", talk.id);
  question.value = sessionStorage.getItem("loam-draft-" + talk.id) || "";
  draw();
  list.draw();
  fitQuestion();
  resume(talk);
  remote.soon(talk.id);
}

/** A new one; it is kept with its first question or document. */
async function startOver() {
  const isNew = talk.messages.length === 0 && talk.attached.length === 0;
  if (!isNew) await show(kept.create(talk));
  list.close();
  question.focus();
}

/** What is typed and not asked outlives the page. */
function keepDraft() {
  const key = "loam-draft-" + talk.id;
  if (question.value === "") sessionStorage.removeItem(key); else sessionStorage.setItem(key, question.value);
}

/** What has come of an answer since it was saved: nothing else is sure to be written while the page goes. */
function keepPartial() {
  const partial = [...runs.values()].filter((run) => run.index >= 0).map(({ conversation, index }) => {
    const { content, reasoning, made } = conversation.messages[index];
    return { id: conversation.id, index, written: { content, reasoning, made } };
  });
  sessionStorage.setItem("loam-partial", JSON.stringify(partial));
}

const partials = JSON.parse(sessionStorage.getItem("loam-partial") || "[]");
sessionStorage.removeItem("loam-partial");

function takePartial(conversation) {
  for (const { index, written } of partials.filter(({ id }) => id === conversation.id)) {
    const message = conversation.messages[index];
    if (message?.writing && written.made >= message.made) Object.assign(message, written);
  }
}

/** Another tab has written or removed a conversation. */
async function heardOf({ kind, id }) {
  if (kind === "removed") { runs.get(id)?.controller.abort(); remote.refresh(); }
  else if (runs.has(id) || (id === talk.id && log.querySelector("textarea"))) return;
  const found = await kept.reload(id);
  if (id !== talk.id) { list.draw(); return; }
  if (!found) { show(kept.create(talk)); return; }
  await kept.needTexts(found);
  const follow = atEnd(), top = log.scrollTop;
  talk = found;
  draw();
  if (!follow) log.scrollTop = top;
  list.draw();
}

// ---- the page ----

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = question.scrollHeight + "px";
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  map.draw();
  try { localStorage.setItem("loam-theme", theme); } catch { /* not kept */ }
}

function keptTheme() {
  try { return localStorage.getItem("loam-theme"); } catch { return null; }
}

/** What Settings said last. */
function keptSettings() {
  try { return JSON.parse(localStorage.getItem("loam-settings")); } catch { return null; }
}

async function connect() {
  try {
    const [model] = (await (await request("v1/models")).json()).data;
    const failed = $("model").classList.contains("error");
    server = { model: model.id, context: model.max_model_len, documentTemperature: model.document_temperature,
      saves: await saved.refresh() };
    $("model").textContent = model.id;
    $("model").title = `${count(model.max_model_len)} tokens at once`;
    $("model").classList.remove("error");
    remote.refresh();
    if (failed || !connect.done) { connect.done = true; resume(talk); }
  } catch (error) {
    $("model").textContent = error.message;
    $("model").classList.add("error");
    if (error.status !== 401) setTimeout(connect, 3000); // the model is still loading, or the server comes back
  }
}

// ---- the key ----

/** A field for it at the top of the conversation. */
function askKey() {
  if (sessionStorage.getItem("loam-key")) $("key-error").textContent = "The server does not take this key.";
  if (!$("key-bar").hidden) return;
  $("key-bar").hidden = false;
  $("key").focus();
}

function useKey(key) {
  if (key) sessionStorage.setItem("loam-key", key); else sessionStorage.removeItem("loam-key");
  $("key-bar").hidden = true;
  $("key-error").textContent = "";
  connect();
  question.focus();
}

function bindSettings() {
  const fields = ["system", "temperature", "length"];
  $("settings-open").addEventListener("click", () => {
    for (const id of fields) $(id).value = talk[id];
    $("remote").hidden = !server.saves;
    $("remote-kept").checked = Boolean(talk.remote);
    $("settings").showModal();
  });
  $("settings").addEventListener("close", () => {
    remote.choose(talk, $("remote-kept").checked);
    for (const id of fields) talk[id] = $(id).value.trim();
    const { system, temperature, length } = talk;
    try { localStorage.setItem("loam-settings", JSON.stringify({ system, temperature, length })); } catch { /* not kept */ }
    if (talk.messages.length > 0 || talk.attached.length > 0) kept.save(talk);
  });
  $("settings-key").addEventListener("click", () => { $("settings").close(); $("key-bar").hidden = false; $("key").focus(); });
  $("key-bar").addEventListener("submit", (event) => { event.preventDefault(); useKey($("key").value.trim()); });
}

function bindKeys() {
  question.addEventListener("input", () => { fitQuestion(); keepDraft(); });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "ArrowUp" && question.value === "" && !isBusy()) {
      const last = tree.shown(talk).findLast((i) => talk.messages[i].role === "user");
      if (last !== undefined) { event.preventDefault(); edit(last); }
    }
  });
  document.addEventListener("keydown", (event) => {
    const key = event.key.toLowerCase(), both = event.ctrlKey && event.shiftKey;
    if (key === "escape" && !document.querySelector("dialog[open]") && !list.close()) stop();
    if (both && key === "m") { event.preventDefault(); map.show($("map").hidden); }
    if (both && key === "o") { event.preventDefault(); startOver(); }
    if (both && key === "l") { event.preventDefault(); list.toggle(); }
  });
}

function bindDrop() {
  let depth = 0;
  const show = (shown) => { $("drop").hidden = !shown; };
  const hasFiles = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  addEventListener("dragenter", (event) => { if (hasFiles(event)) { event.preventDefault(); depth++; show(true); } });
  addEventListener("dragleave", (event) => { if (hasFiles(event) && --depth <= 0) { depth = 0; show(false); } });
  addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    show(false);
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean); // now, or never
    addFiles(entries.some((entry) => entry.isDirectory) ? Promise.all(entries.map(filesOf)) : [...event.dataTransfer.files]);
  });
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", () => { addFiles([...$("files").files]); $("files").value = ""; });
}

async function begin() {
  setTheme(keptTheme() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("stop").addEventListener("click", stop);
  $("new").addEventListener("click", startOver);
  addEventListener("pagehide", () => { leaving = true; keepPartial(); });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); }); // its requests have ended
  bindSettings();
  bindKeys();
  bindDrop();
  map.bind();
  sources.bind();
  list.bind();
  kept.bind(heardOf, list.tell, ({ id }) => remote.soon(id), (id) => runs.has(id));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) remote.refresh(); });
  await kept.load();
  kept.all().forEach(takePartial);
  const before = kept.get(sessionStorage.getItem("loam-shown"));
  const shown = before || (sessionStorage.getItem("loam-shown") === null ? kept.all()[0] : undefined) || kept.create(keptSettings());
  await kept.needTexts(shown);
  talk = shown;
  sessionStorage.setItem("loam-shown", talk.id);
  question.value = sessionStorage.getItem("loam-draft-" + talk.id) || "";
  draw();
  list.draw();
  fitQuestion();
  question.focus();
  connect();
}

begin();
