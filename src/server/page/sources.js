// The sentences that an answer's tokens attended to, from /v1/loam/explain: a list at the answer, and each of them in its
// document.  They are kept with the answer.

const sources = (() => {
  const CONTEXT = 20000;   // characters shown on either side of a sentence
  const STANDS_OUT = 3;    // times the average; below it, no sentence does
  const SOURCES_MAX = 64;
  let shown = null;        // {of, all, at}: what the dialog shows

  const percent = (share) => (100 * share).toFixed(1) + "%";
  const times = (lift) => (lift < 10 ? lift.toFixed(1) : lift.toFixed(0)) + "× the average";

  /** The texts that the answer could read: the documents before it, or else the questions. */
  function textsBefore(conversation, index) {
    const asked = tree.before(conversation, index).map((i) => conversation.messages[i]).filter((m) => m.role === "user");
    const documents = asked.flatMap((m) => m.documents || []).map((d) => ({ name: d.name, text: kept.textOf(d) }));
    const texts = documents.length > 0 ? documents : asked.map((m) => ({ name: "your question", text: m.content }));
    return texts.filter((t) => t.text.trim() !== "").slice(-SOURCES_MAX);
  }

  // ---- asking ----

  async function ask(run, index) {
    const { conversation } = run, { system } = conversation.messages[index];
    const response = await post("v1/loam/explain", { stream: true, sources: textsBefore(conversation, index),
      messages: conversationOf(conversation, index, system) }, run.controller.signal);
    for await (const event of events(response)) {
      if (event.object === "loam.explanation") return event.spans;
      if (!event.total) continue;
      const done = `${count(event.processed)} of ${count(event.total)} tokens`;
      showProgress(run, event.state === "reading" ? "Reading " + done : "Looking at the answer: " + done, event.processed / event.total);
    }
    throw new Error("The server ended before it had looked at the answer.");
  }

  /** Asks once; then shows them, or hides them. */
  async function toggle(article, index) {
    const conversation = talk, message = conversation.messages[index];
    if (article.querySelector(".sources")) {
      article.querySelector(".sources").remove();
      tell(article, false);
      status.textContent = "";
      return;
    }
    while (running()?.reads) await running().ended;
    if (running() !== null) return;
    if (!message.sources) {
      const run = beginRunning(conversation, {});
      showProgress(run, "Looking at the answer", 0);
      tellError(article, "");
      try {
        message.sources = await ask(run, index);
        kept.save(conversation);
      } catch (error) {
        if (error.name === "AbortError") say(run, "Stopped.");
        else if (!leaving) tellError(article, "No sources: " + error.message);
      }
      if (!leaving) endRunning(run);
      if (!message.sources || !article.isConnected) return;
    }
    show(article, index);
  }

  const tell = (article, open) => article.querySelector(".ask-sources").setAttribute("aria-expanded", String(open));

  // ---- the list ----

  function show(article, index) {
    const spans = talk.messages[index].sources, texts = textsBefore(talk, index);
    const best = Math.max(0, ...spans.map((s) => s.lift)), most = Math.max(...spans.map((s) => s.share));
    const items = spans.map((span, i) => {
      const bar = element("i", {});
      bar.style.width = 100 * span.share / most + "%";
      return element("li", {}, element("button", { type: "button", title: "Show it in its place", "aria-haspopup": "dialog", onclick: () => open(texts, spans, i) },
        element("span", { class: "where" }, place(span)), " ", element("span", { class: "share" }, percent(span.share) + ", " + times(span.lift)),
        element("span", { class: "bar", "aria-hidden": "true" }, bar), element("q", {}, span.text)));
    });
    const note = spans.length === 0 ? "Nothing of what was read could be found again."
      : best < STANDS_OUT ? "No sentence stands out: the answer does not come from one of them."
        : "Where the answer’s words looked, by their share of the attention. It says what was read, not why.";
    const list = element("section", { class: "sources", "aria-label": "Sources", "aria-live": "off", tabindex: "-1" },
      element("p", {}, note), element("ol", {}, ...items));
    article.append(list);
    tell(article, true);
    reveal(article, list);
    status.textContent = items.length === 1 ? "1 source is shown below the answer." : items.length + " sources are shown below the answer.";
  }

  /** Scrolls until the list is seen, or its button is at the top. */
  function reveal(article, list) {
    const below = list.getBoundingClientRect().bottom - log.getBoundingClientRect().bottom;
    const above = article.querySelector("footer").getBoundingClientRect().top - log.getBoundingClientRect().top;
    log.scrollTop += Math.max(0, Math.min(below + 16, above - 8));
  }

  /** Where in what: by page or chapter, where the document has such. */
  const place = (span) => `${span.file ?? span.name}, ` + (span.page ? `page ${count(span.page)}`
    : span.chapter ? `chapter ${count(span.chapter)}` : `line ${count(span.line)}`);

  /** Marks of pages and chapters are seen as ends of lines. */
  const seen = (text) => text.replace(/[\f\v]/g, "\n");

  // ---- a sentence in its document ----

  /** The characters of a text's byte offsets. */
  function charactersOf(text) {
    const bytes = new TextEncoder().encode(text), decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return (offset) => decoder.decode(bytes.subarray(0, offset)).length;
  }

  function open(texts, all, at) {
    shown = { texts, all, at };
    fill();
    if (!$("source").open) $("source").showModal();
    $("source-text").querySelector(".now")?.scrollIntoView({ block: "center" });
    $("source-text").focus({ preventScroll: true });
  }

  /** The document around the sentence, all listed ones marked. */
  function fill() {
    const { texts, all, at } = shown, span = all[at], text = texts[span.source]?.text || span.text;
    const toCharacters = charactersOf(text), made = document.createDocumentFragment();
    const marks = all.map((s, i) => ({ i, ...s })).filter((s) => s.source === span.source)
      .map((s) => ({ now: s.i === at, begin: toCharacters(s.begin), end: toCharacters(s.end) })).sort((a, b) => a.begin - b.begin);
    const now = marks.find((m) => m.now);
    const first = Math.max(0, now.begin - CONTEXT), last = Math.min(text.length, now.end + CONTEXT);
    let from = first;
    if (first > 0) made.append("… ");
    for (const mark of marks.filter((m) => m.begin >= first && m.end <= last)) {
      made.append(seen(text.slice(from, mark.begin)), element("mark", { class: mark.now && "now" }, seen(text.slice(mark.begin, mark.end))));
      from = mark.end;
    }
    made.append(seen(text.slice(from, last)), last < text.length ? " …" : "");
    $("source-text").replaceChildren(made);
    $("source-title").textContent = place(span);
    $("source-share").textContent = `${at + 1} of ${all.length}: ${percent(span.share)} of the attention, ${times(span.lift)}`;
    $("source-before").disabled = at === 0;
    $("source-after").disabled = at + 1 === all.length;
  }

  const go = (step) => { const at = shown.at + step; if (at >= 0 && at < shown.all.length) open(shown.texts, shown.all, at); };

  function bind() {
    $("source-before").addEventListener("click", () => go(-1));
    $("source-after").addEventListener("click", () => go(1));
    $("source").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") go(-1);
      if (event.key === "ArrowRight") go(1);
    });
  }

  return { bind, toggle, place };
})();
