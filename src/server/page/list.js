// The list of conversations: shown beside the one that is read, or over it where there is little room.

const list = (() => {
  const narrow = matchMedia("(max-width: 60rem)");
  let removed = null;   // the conversation that may come back
  let renaming = false; // a name is being typed

  const panel = $("list");
  const isOpen = () => !panel.hidden;
  const nameOf = (conversation) => conversation.title || conversation.attached[0]?.name || "New conversation";

  function toggle(open = !isOpen()) {
    panel.hidden = !open;
    $("list-open").setAttribute("aria-expanded", String(open));
    if (open) (panel.querySelector("[aria-current]") || panel.querySelector("button"))?.focus();
    if (open) { saved.refresh(); remote.refresh(); }
    if (!narrow.matches) try { localStorage.setItem("loam-list", open ? "" : "closed"); } catch { /* not kept */ }
  }

  /** Where it lies over the conversation.  Whether it did. */
  function close() {
    if (!narrow.matches || !isOpen()) return false;
    toggle(false);
    $("list-open").focus();
    return true;
  }

  // ---- what a person does ----

  function rename(conversation, item) {
    const field = element("input", { "aria-label": "Name of the conversation", maxlength: "200" });
    const end = (keeps) => {
      if (!renaming) return;
      renaming = false;
      const title = field.value.trim();
      if (keeps && title !== "" && title !== conversation.title) {
        Object.assign(conversation, { title, named: true });
        kept.save(conversation);
      }
      draw();
      panel.querySelector(`[data-id="${conversation.id}"] button`)?.focus();
    };
    field.value = nameOf(conversation);
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" && !event.isComposing) { event.preventDefault(); end(true); } // else it presses the button, too
      if (event.key === "Escape") end(false);
    });
    field.addEventListener("blur", () => end(true));
    renaming = true;
    item.replaceChildren(field);
    field.select();
  }

  async function remove(conversation) {
    runs.get(conversation.id)?.controller.abort();
    try {
      conversation = await remote.open(conversation); // it may come back
      await remote.remove(conversation);
    } catch (error) { tell("Not deleted: " + error.message); return; }
    tell("");
    await kept.remove(conversation);
    removed = conversation;
    sessionStorage.removeItem("loam-draft-" + conversation.id);
    if (conversation.id === talk.id) await show(kept.all()[0] || kept.create(conversation));
    draw();
    $("undo").focus();
  }

  async function undo() {
    const conversation = removed;
    removed = null;
    if (conversation.remote) conversation.remote = { version: "", unsent: 0 };
    conversation.messages.forEach((m) => { if (m.writing) Object.assign(m, { writing: false, reason: "stopped" }); });
    await kept.restore(conversation);
    show(conversation);
  }

  // ---- as Markdown ----

  function markdownOf(conversation) {
    const parts = ["# " + nameOf(conversation)];
    for (const i of tree.shown(conversation)) {
      const m = conversation.messages[i], names = (m.documents || []).map((d) => d.name).join(", ");
      parts.push(m.role === "user" ? "## Question" : "## Answer");
      if (names) parts.push("Documents: " + names);
      if (m.content) parts.push(m.content.trim());
      if (m.failed) parts.push(`*${m.failed}*`);
      if (m.sources?.length) parts.push("Sources:", m.sources.map((s) => `- ${sources.place(s)}: ${s.text.trim().replace(/\s+/g, " ")}`).join("\n"));
    }
    return parts.join("\n\n") + "\n";
  }

  function download(conversation) {
    const address = URL.createObjectURL(new Blob([markdownOf(conversation)], { type: "text/markdown" }));
    const name = nameOf(conversation).replace(/[^\p{L}\p{N}._-]+/gu, " ").trim().slice(0, 80) || "conversation";
    element("a", { href: address, download: name + ".md" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // ---- the list ----

  function row(conversation) {
    const name = nameOf(conversation), isShown = conversation.id === talk.id, isRunning = runs.has(conversation.id);
    const act = (sign, what, how) => element("button", { type: "button", class: "act", title: what, "aria-label": `${what}: ${name}`, onclick: how }, sign);
    const { isElsewhere } = conversation, trouble = remote.trouble(conversation.id);
    const item = element("li", { "data-id": conversation.id },
      element("button", { type: "button", class: "name", title: name, "aria-current": isShown && "true", onclick: () => open(conversation) },
        isRunning ? element("span", { class: "busy", role: "img", "aria-label": "answering" }) : null, name),
      isElsewhere ? null : act("✎", "Rename", () => rename(conversation, item)),
      isElsewhere ? null : act("↓", "Export as Markdown", () => download(conversation)),
      act("×", "Delete", () => remove(conversation)),
      conversation.remote ? element("span", { class: trouble ? "error" : "more" }, trouble ? "Not on the server: " + trouble
        : isElsewhere || conversation.remote.version ? "on the server" : "not yet on the server") : null);
    return item;
  }

  async function open(conversation) {
    close();
    try {
      await show(await remote.open(conversation));
      question.focus();
    } catch (error) { tell("Not opened: " + error.message); }
  }

  const all = () => [...kept.all(), ...remote.others()].sort((a, b) => b.used - a.used);

  function draw() {
    if (renaming) return;
    const undoing = document.activeElement.id === "undo";
    const undoes = removed ? element("li", { class: "removed" }, element("span", {}, "Deleted: " + nameOf(removed)),
      element("button", { type: "button", id: "undo", onclick: undo }, "Undo")) : null;
    drawRows($("conversations"), [...(undoes ? [undoes] : []), ...all().map(row)]);
    $("conversations-none").hidden = all().length > 0;
    if (undoing) $("undo")?.focus();
  }

  const tell = (words) => { $("list-error").textContent = words; };

  /** As there is room, and as it was left. */
  function fit() {
    let left = "";
    try { left = localStorage.getItem("loam-list"); } catch { /* not kept */ }
    panel.hidden = narrow.matches || left === "closed";
    $("list-open").setAttribute("aria-expanded", String(isOpen()));
  }

  function bind() {
    fit();
    $("list-open").addEventListener("click", () => toggle());
    narrow.addEventListener("change", fit);
    log.addEventListener("click", () => { if (narrow.matches && isOpen()) close(); });
  }

  return { bind, draw, toggle, close, tell };
})();
