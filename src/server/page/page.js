// One conversation with a model about documents.  All text reaches the page by textContent.

const $ = (id) => document.getElementById(id);
const log = $("log"), question = $("question"), status = $("status");

/** What is kept in this browser: {messages: [{role, content, reasoning, figures, documents, sources, system}], system,
 * temperature, length} */
let state = { messages: [], system: "", temperature: "", length: "" };
/** Documents of the next question: {name, text, tokens} */
let attached = [];
/** The request that runs: {controller, article, ended, reads} or null.  reads: documents, and nobody waits for them */
let running = null;

// ---- storage ----

const store = {
  open: () => new Promise((resolve, reject) => {
    const request = indexedDB.open("loam", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("kept");
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  }),
  async run(mode, act) {
    try {
      const base = await store.open();
      return await new Promise((resolve, reject) => {
        const request = act(base.transaction("kept", mode).objectStore("kept"));
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
      });
    } catch { return undefined; } // a private window: the conversation lives as long as the page
  },
  load: () => store.run("readonly", (kept) => kept.get("conversation")),
  save: () => store.run("readwrite", (kept) => kept.put({ ...state, attached }, "conversation")),
};

// ---- requests ----

function headers(more) {
  const key = sessionStorage.getItem("loam-key");
  return { ...(key ? { Authorization: "Bearer " + key } : {}), ...more };
}

async function failureOf(response) {
  let message = response.status + " " + response.statusText;
  try { message = (await response.json()).error.message || message; } catch { /* no JSON: the status says it */ }
  if (response.status === 401) message += " (set the API key in Settings)";
  return message;
}

/** Yields the JSON of each `data:` line until [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n")) >= 0) {
      const line = held.slice(0, end).replace(/\r$/, "");
      held = held.slice(end + 1);
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** The documents of a question come first, so that later questions share their saved prefix. */
function wholeText(message) {
  const parts = (message.documents || []).map((d) => d.text.replace(/\n+$/, ""));
  if (message.content) parts.push(message.content);
  return parts.join("\n\n");
}

function conversation(messages, system = state.system) {
  const sent = messages.filter((m) => !m.failed).map((m) => ({ role: m.role, content: m.role === "user" ? wholeText(m) : m.content }));
  return system ? [{ role: "system", content: system }, ...sent] : sent;
}

/** Posts a chat request; calls on(event) for each of the stream. */
async function chat(body, signal, on) {
  const response = await fetch("v1/chat/completions", {
    method: "POST", signal, headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify({ stream: true, return_progress: true, timings_per_token: false,
                           stream_options: { include_usage: true }, ...body }),
  });
  if (!response.ok) throw new Error(await failureOf(response));
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message || "the server failed");
    on(event);
  }
}

// ---- text to elements: a small part of Markdown ----

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((c) => c !== null && c !== undefined));
  return made;
}

/** `code`, **bold** and *italic* of one line. */
function inline(text) {
  const pattern = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > from) parts.push(text.slice(from, match.index));
    const name = match[1] !== undefined ? "code" : match[2] !== undefined ? "strong" : "em";
    parts.push(element(name, {}, match[1] ?? match[2] ?? match[3]));
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push(text.slice(from));
  return parts;
}

function codeBlock(text) {
  const button = element("button", { type: "button", onclick: () => copy(text, button) }, "Copy");
  return element("pre", { tabindex: "0" }, button, element("code", {}, text));
}

/** Lines of one block; the kind decides. */
function block(lines) {
  const heading = /^#{1,6} +(.*)$/.exec(lines[0]);
  if (heading && lines.length === 1) return element("h3", {}, ...inline(heading[1]));
  const kinds = [["ul", /^ *[-*+] +/], ["ol", /^ *\d+[.)] +/]];
  for (const [name, pattern] of kinds) {
    if (!pattern.test(lines[0])) continue;
    const items = [];
    for (const line of lines) {
      if (pattern.test(line)) items.push(line.replace(pattern, ""));
      else items[items.length - 1] += "\n" + line;
    }
    return element(name, {}, ...items.map((item) => element("li", {}, ...inline(item))));
  }
  if (lines.every((line) => line.startsWith(">")))
    return element("blockquote", {}, ...inline(lines.map((line) => line.replace(/^> ?/, "")).join("\n")));
  const paragraph = element("p", {});
  lines.forEach((line, i) => paragraph.append(...(i > 0 ? [element("br")] : []), ...inline(line)));
  return paragraph;
}

function rendered(text) {
  const made = document.createDocumentFragment();
  let lines = [], code = null;
  const close = () => { if (lines.length > 0) made.append(block(lines)); lines = []; };
  for (const line of text.split("\n")) {
    const fence = /^ *```/.test(line);
    if (code !== null) {
      if (fence) { made.append(codeBlock(code.join("\n"))); code = null; } else code.push(line);
    } else if (fence) { close(); code = []; }
    else if (line.trim() === "") close();
    else if (/^#{1,6} /.test(line)) { close(); lines = [line]; close(); }
    else lines.push(line);
  }
  if (code !== null) made.append(codeBlock(code.join("\n"))); // not closed yet
  close();
  return made;
}

// ---- messages ----

async function copy(text, button) {
  let done = true;
  try { await navigator.clipboard.writeText(text); } catch { done = copyBySelection(text); }
  const before = button.textContent;
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

/** Where the page is not served securely there is no clipboard. */
function copyBySelection(text) {
  const field = element("textarea", { class: "hidden" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

/** waits: until no answer is on its way. */
function button(label, title, act, waits) {
  return element("button", { type: "button", title, class: waits && "waits", onclick: act }, label);
}

function figuresText(figures) {
  if (!figures) return "";
  const parts = [];
  if (figures.prompt !== undefined) {
    const read = figures.prompt - (figures.reused || 0);
    parts.push(figures.reused ? `${count(read)} read, ${count(figures.reused)} known` : `${count(read)} read`);
  }
  if (figures.answer) parts.push(`${count(figures.answer)} tokens`);
  if (figures.rate) parts.push(`${figures.rate.toFixed(1)} a second`);
  if (figures.reason === "length") parts.push("cut at the limit");
  return parts.join(" · ");
}

const count = (n) => Number(n).toLocaleString("en");

function userArticle(message, index) {
  const read = (message.documents || []).length > 0
    ? element("ul", { class: "read", "aria-label": "Documents" }, ...message.documents.map((d) => element("li", {}, d.name)))
    : null;
  return element("article", { class: "user", "data-index": index, "aria-label": "You" }, read,
    element("div", { class: "text" }, message.content),
    element("footer", {}, button("Edit", "Ask differently from here", () => edit(index), true),
      button("Copy", "Copy the question", (e) => copy(message.content, e.target))));
}

function answerArticle(message, index) {
  const text = element("div", { class: "text" });
  const article = element("article", { class: "assistant", "data-index": index, "aria-label": "Answer" }, text,
    element("footer", {}, element("button", { type: "button", class: "copy", title: "Copy the answer",
      onclick: (e) => copy(state.messages[index].content, e.target) }, "Copy"),
      button("Retry", "Answer again", () => retry(index), true),
      element("button", { type: "button", class: "ask-sources waits", title: "Which sentences this answer looked at",
        "aria-expanded": "false", onclick: () => sources.toggle(article, index) }, "Sources"),
      element("span", { class: "figures" })));
  fillAnswer(article, message);
  return article;
}

function fillAnswer(article, message) {
  const text = article.querySelector(".text");
  text.replaceChildren();
  if (message.reasoning) {
    text.append(element("details", { class: "thought", open: !message.content },
      element("summary", {}, "Thoughts"), message.reasoning));
  }
  text.append(rendered(message.content || ""));
  if (message.failed) text.append(element("p", { class: "error" }, message.failed));
  text.classList.toggle("wait", running !== null && running.article === article);
  article.querySelector(".figures").textContent = figuresText(message.figures);
  article.querySelector(".copy").hidden = !message.content;
  article.querySelector(".ask-sources").hidden = !message.content || Boolean(message.failed) || running?.article === article;
}

function draw() {
  log.replaceChildren();
  if (state.messages.length === 0) {
    log.append(element("div", { class: "welcome" }, element("h2", {}, "Ask about a long document"),
      element("p", {}, "Drop text files anywhere. What was read once is kept and not read again.")));
  }
  state.messages.forEach((m, i) => log.append(m.role === "user" ? userArticle(m, i) : answerArticle(m, i)));
  drawDocuments();
  toEnd();
}

function drawDocuments() {
  $("documents").replaceChildren(...attached.map((d, i) => element("li", {},
    element("span", {}, d.name), element("span", { class: "figures" }, " " + size(d.text.length)),
    element("button", { type: "button", "aria-label": "Remove " + d.name,
      onclick: () => removeDocument(i) }, "×"))));
}

const size = (n) => n < 1000 ? n + " B" : n < 1e6 ? (n / 1000).toFixed(0) + " kB" : (n / 1e6).toFixed(1) + " MB";
const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
const toEnd = () => { log.scrollTop = log.scrollHeight; };

// ---- asking ----

function showRunning() {
  $("send").hidden = running !== null && !running.reads;
  $("stop").hidden = running === null;
  log.setAttribute("aria-busy", String(running !== null));
  log.querySelectorAll(".waits").forEach((b) => { b.disabled = running !== null && !running.reads; });
}

/** One request at a time. */
function beginRunning(what) {
  running?.controller.abort();
  let finish;
  const ended = new Promise((resolve) => { finish = resolve; });
  running = { controller: new AbortController(), ended, finish, ...what };
  status.textContent = "";
  showRunning();
  map.soon();
  return running;
}

function endRunning(mine) {
  mine.finish();
  if (running !== mine) return; // another one has begun
  running = null;
  showRunning();
  showProgress("", 0);
  map.soon();
}

const isBusy = () => running !== null && !running.reads;

function showProgress(text, part) {
  $("progress-line").hidden = text === "";
  $("progress-text").textContent = text || "Reading";
  $("progress").value = part;
}

/** Tokens read so far, from llama-server's prompt_progress. */
function noteProgress(event, began) {
  const progress = event.prompt_progress;
  if (!progress || !progress.total) return;
  const done = progress.processed / progress.total;
  const fresh = progress.processed - (progress.cache || 0);
  const seconds = (performance.now() - began) / 1000;
  const rest = fresh > 0 ? seconds * (progress.total - progress.processed) / fresh : 0;
  showProgress(`Reading ${count(progress.processed)} of ${count(progress.total)} tokens` +
    (rest > 3 ? `, ${rest < 90 ? Math.round(rest) + " s" : Math.round(rest / 60) + " min"} left` : ""), done);
}

function noteFigures(message, event) {
  const usage = event.usage, timings = event.timings;
  message.figures = message.figures || {};
  if (usage) {
    message.figures.prompt = usage.prompt_tokens;
    message.figures.reused = (usage.prompt_tokens_details || {}).cached_tokens || 0;
    message.figures.answer = usage.completion_tokens;
  }
  if (timings && timings.predicted_per_second) message.figures.rate = timings.predicted_per_second;
}

/** The documents that are being read come first: what they have read is complete then.  false: it was stopped. */
async function readingEnds(article, message) {
  const reading = running;
  reading.reads = false;
  reading.article = article;
  showRunning();
  fillAnswer(article, message);
  toEnd();
  await reading.ended;
  if (!reading.controller.signal.aborted) return true;
  message.failed = "stopped before the answer began";
  fillAnswer(article, message);
  store.save();
  return false;
}

/** Answers the messages before `index`, into message `index`. */
async function answer(index) {
  const message = { role: "assistant", content: "", reasoning: "", system: state.system };
  state.messages.length = index;
  state.messages.push(message);
  log.querySelectorAll("article").forEach((a) => { if (Number(a.dataset.index) >= index) a.remove(); });
  const article = answerArticle(message, index);
  log.append(article);
  if (running?.reads && !await readingEnds(article, message)) return;
  const began = performance.now(), mine = beginRunning({ article });
  fillAnswer(article, message);
  toEnd();
  let pending = false;
  const redraw = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      const follow = atEnd();
      pending = false;
      fillAnswer(article, message);
      if (follow) toEnd();
    });
  };
  const body = { messages: conversation(state.messages.slice(0, index)) };
  if (state.temperature !== "") body.temperature = Number(state.temperature);
  if (state.length !== "") body.max_tokens = Number(state.length);
  try {
    await chat(body, mine.controller.signal, (event) => {
      noteProgress(event, began);
      noteFigures(message, event);
      const choice = (event.choices || [])[0];
      if (!choice) return;
      const delta = choice.delta || {};
      if (delta.content || delta.reasoning_content) showProgress("", 0);
      message.content += delta.content || "";
      message.reasoning += delta.reasoning_content || "";
      if (choice.finish_reason) { message.figures = { ...message.figures, reason: choice.finish_reason }; }
      redraw();
    });
    status.textContent = "Answered.";
  } catch (error) {
    if (error.name === "AbortError") status.textContent = "Stopped. What was read stays read.";
    else message.failed = error.message;
    if (error.name === "AbortError" && message.content === "") message.failed = "stopped before the answer began";
  }
  endRunning(mine);
  fillAnswer(article, message);
  store.save();
}

function send() {
  const content = question.value.trim();
  if (content === "" && attached.length === 0) return;
  if (isBusy()) { status.textContent = "One moment: the last answer is not complete. Esc stops it."; return; }
  if (content === "") { question.focus(); status.textContent = "Now ask about it."; return; }
  log.querySelector(".welcome")?.remove();
  const message = { role: "user", content, documents: attached };
  state.messages.push(message);
  log.append(userArticle(message, state.messages.length - 1));
  attached = [];
  drawDocuments();
  question.value = "";
  fitQuestion();
  answer(state.messages.length);
}

function stop() { running?.controller.abort(); }

function retry(index) {
  if (!isBusy()) answer(index);
}

/** The question becomes a field; asking it again drops what came after. */
function edit(index) {
  if (isBusy()) return;
  const message = state.messages[index], article = log.querySelector(`article[data-index="${index}"]`);
  const field = element("textarea", { rows: String(Math.min(12, message.content.split("\n").length + 1)), "aria-label": "Question" });
  field.value = message.content;
  const done = () => { const now = userArticle(message, index); article.replaceWith(now); now.querySelector("button").focus(); };
  const ask = () => {
    const content = field.value.trim();
    if (content === "") return;
    message.content = content;
    done();
    answer(index + 1);
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

async function addFiles(files) {
  const refused = [];
  for (const file of files) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = null;
    try { text = new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { /* not text */ }
    if (text === null || text.includes("\0")) refused.push(file.name);
    else if (text.trim() === "") refused.push(file.name + " (empty)");
    else attached.push({ name: file.name, text });
  }
  drawDocuments();
  store.save();
  const note = refused.length > 0 ? "Not text in UTF-8: " + refused.join(", ") + ". " : "";
  if (running?.reads) running.again = true;
  if (attached.length > 0 && running === null) readAhead(note);
  else status.textContent = note;
  question.focus();
}

/** Reads what was attached while the question is typed: a request for no tokens computes and saves the prompt. */
async function readAhead(note = "") {
  const began = performance.now(), mine = beginRunning({ article: null, reads: true });
  showProgress("Reading", 0);
  status.textContent = note;
  try {
    const messages = conversation([...state.messages, { role: "user", content: "", documents: attached }]);
    await chat({ messages, max_tokens: 0 }, mine.controller.signal, (event) => noteProgress(event, began));
    if (mine.reads) status.textContent = note + "Read. Ask about it.";
  } catch (error) {
    if (running === mine) status.textContent = error.name === "AbortError" ? "Stopped. What was read stays read." : error.message;
  }
  endRunning(mine);
  if (mine.again && mine.reads && running === null && attached.length > 0 && !mine.controller.signal.aborted) readAhead(note);
}

function removeDocument(index) {
  attached.splice(index, 1);
  drawDocuments();
  store.save();
  question.focus();
  if (running?.reads && attached.length > 0) readAhead();
  else if (running?.reads) stop();
}

// ---- the page ----

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = question.scrollHeight + "px";
}

function startOver() {
  stop();
  state.messages = [];
  attached = [];
  draw();
  store.save();
  question.focus();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  map.draw();
  try { localStorage.setItem("loam-theme", theme); } catch { /* not kept */ }
}

function keptTheme() {
  try { return localStorage.getItem("loam-theme"); } catch { return null; }
}

async function connect() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await failureOf(response));
    $("model").textContent = (await response.json()).data.map((m) => m.id).join(", ");
    $("model").classList.remove("error");
  } catch (error) {
    $("model").textContent = error.message;
    $("model").classList.add("error");
    setTimeout(connect, 3000); // the model is still loading, or the server comes back
  }
}

function bindSettings() {
  const fields = ["system", "temperature", "length"];
  $("settings-open").addEventListener("click", () => {
    for (const id of fields) $(id).value = state[id];
    $("key").value = sessionStorage.getItem("loam-key") || "";
    $("settings").showModal();
  });
  $("settings").addEventListener("close", () => {
    for (const id of fields) state[id] = $(id).value.trim();
    const key = $("key").value.trim();
    if (key) sessionStorage.setItem("loam-key", key); else sessionStorage.removeItem("loam-key");
    store.save();
    connect();
  });
}

function bindKeys() {
  question.addEventListener("input", fitQuestion);
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "ArrowUp" && question.value === "" && !isBusy()) {
      const last = state.messages.map((m) => m.role).lastIndexOf("user");
      if (last >= 0) { event.preventDefault(); edit(last); }
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
    if (event.key.toLowerCase() === "m" && event.ctrlKey && event.shiftKey) { event.preventDefault(); map.show($("map").hidden); }
    if (event.key.toLowerCase() === "o" && event.ctrlKey && event.shiftKey) { event.preventDefault(); startOver(); }
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
    addFiles([...event.dataTransfer.files]);
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
  bindSettings();
  bindKeys();
  bindDrop();
  map.bind();
  sources.bind();
  const kept = await store.load();
  if (kept && Array.isArray(kept.messages)) {
    ({ attached = [], ...state } = { ...state, ...kept });
  }
  draw();
  fitQuestion();
  question.focus();
  connect();
}

begin();
