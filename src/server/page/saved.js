// What the server has read and saved for this key: each document with its size and last use, to ask about or to delete.

const saved = (() => {
  const names = { serve: "A conversation" }; // what was saved without an upload

  /** Whether the server keeps documents. */
  async function refresh() {
    try {
      const { data, saves } = await (await request("v1/loam/documents")).json();
      draw(data, saves);
      return saves;
    } catch (error) {
      $("saved-documents").replaceChildren();
      $("saved-note").textContent = error.message;
      $("saved-note").classList.add("error");
      return false;
    }
  }

  async function remove(document, item) {
    try {
      await request("v1/loam/documents/" + document.id, { method: "DELETE" });
      refresh();
    } catch (error) { tell(item, error.message); }
  }

  /** A new conversation about it. */
  async function ask(document, item) {
    try {
      const system = talk.system ? "?system=" + encodeURIComponent(talk.system) : "";
      const { text } = await (await request(`v1/loam/documents/${document.id}/text${system}`)).json();
      const conversation = kept.create(talk);
      conversation.attached.push(await kept.addText(document.name, text));
      await kept.save(conversation);
      list.close();
      await show(conversation);
      question.focus();
    } catch (error) { tell(item, error.message); }
  }

  function tell(item, words) {
    const error = item.querySelector(".error");
    error.textContent = words;
    error.hidden = false;
  }

  function row(document) {
    const name = names[document.name] || document.name;
    const act = (sign, what, how) => element("button",
      { type: "button", class: "act", title: what, "aria-label": `${what}: ${name}`, onclick: () => how(document, item) }, sign);
    const used = ago(Date.now() / 1000 - document.used);
    const item = element("li", { "data-id": document.id }, element("span", { class: "name", title: name }, name),
      document.name in names || document.damaged ? null : act("Ask", "Ask about this document", ask), act("×", "Delete from the server", remove),
      element("span", { class: "more" }, `${count(document.token_count)} tokens · ${size(document.bytes)} · ${used}`),
      element("span", { class: "error", role: "alert", hidden: !document.damaged }, document.damaged ? "damaged: " + document.damaged : ""));
    return item;
  }

  function draw(documents, saves) {
    documents = documents.filter((d) => d.token_count > 0 || d.damaged); // the others are being written
    const bytes = documents.reduce((sum, d) => sum + d.bytes, 0);
    drawRows($("saved-documents"), documents.sort((a, b) => b.used - a.used).map(row));
    $("saved-note").classList.remove("error");
    $("saved-note").textContent = !saves ? "None: loam serve --kv-disk DIR keeps what was read." : documents.length > 0
      ? `${size(bytes)} on the server’s disk. A question about one of these reads nothing again.` : "Nothing yet: drop a file.";
  }

  return { refresh };
})();
