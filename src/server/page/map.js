// The live map: where the chunks of every layer and KV head are, and what the last token did with them, from
// /v1/loam/map.  It asks while it is shown and the page is seen, and not at all by itself where motion is reduced.

const map = (() => {
  const BUSY_MS = 250, IDLE_MS = 2000, HEIGHT_MAX = 300, GAP = 1;
  const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const bitsOf = Object.fromEntries([...alphabet].map((c, i) => [c, i]));
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let shown = null;    // the last answer of the server, with all of its cells
  let cells = [];      // the six bits of each
  let before = null;   // the receipt of the map before it
  let timer = 0, asking = false, again = false;
  let at = null;       // {lane, column} of the chunk that is described
  let rowHeight = 1;   // of a KV head, in pixels of the canvas

  const $$ = (id) => document.getElementById("map-" + id);
  const percent = (part, all) => all > 0 ? (100 * part / all).toFixed(part < all && part > 0 ? 1 : 0) + "%" : "–";
  const isOpen = () => !document.getElementById("map").hidden;

  // ---- asking ----

  function take(answer) {
    if (answer.changes && shown) {
      for (let i = 0; i < answer.changes.length; i += 2)
        [...answer.changes[i + 1]].forEach((c, n) => { cells[answer.changes[i] + n] = bitsOf[c]; });
    } else if (answer.cells !== undefined) {
      cells = [...answer.cells].map((c) => bitsOf[c]);
    } else {
      cells = [];
    }
    before = shown && shown.receipt;
    shown = answer;
  }

  async function ask() {
    if (asking) { again = true; return; }
    asking = true;
    clearTimeout(timer);
    try {
      const since = shown && shown.number ? "?since=" + shown.number : "";
      take(await (await request("v1/loam/map" + since)).json());
      $$("state").classList.remove("error");
      draw();
      tell();
    } catch (error) {
      shown = null;
      $$("state").textContent = error.message;
      $$("state").classList.add("error");
    }
    asking = false;
    if (!isOpen() || document.hidden) return;
    const busy = runs.size > 0;
    if (again) { again = false; ask(); }
    else if (!still.matches) timer = setTimeout(ask, busy ? BUSY_MS : IDLE_MS);
  }

  // ---- drawing ----

  /** [r, g, b] of the style's colours, as #rrggbb. */
  function colours() {
    const style = getComputedStyle(document.documentElement);
    const rgb = (name) => { const v = parseInt(style.getPropertyValue("--" + name).trim().slice(1), 16); return [v >> 16, v >> 8 & 255, v & 255]; };
    return { none: rgb("none"), disk: rgb("disk"), ram: rgb("ram"), hit: rgb("hit"), miss: rgb("miss"), ahead: rgb("ahead"), line: rgb("line") };
  }

  const mixed = (a, b, part) => a.map((v, i) => Math.round(v + (b[i] - v) * part));

  /** The colour of six bits: how much of it was attended to, over where it is. */
  function palette() {
    const c = colours();
    return [...alphabet].map((_, bits) => {
      const ram = bits & 3, rows = bits >> 2 & 3, read = bits & 16, saved = bits & 32;
      const under = read ? c.ahead : ram ? mixed(saved ? c.disk : c.none, c.ram, ram === 3 ? 1 : ram / 3) : saved ? c.disk : c.none;
      return rows ? mixed(under, read ? c.miss : c.hit, [0, 0.45, 0.7, 1][rows]) : under;
    });
  }

  function draw() {
    if (!shown || !shown.columns || !isOpen()) return;
    const canvas = $$("canvas"), { layers, kv_heads: heads, columns } = shown;
    const columnWidth = Math.max(1, Math.floor(1024 / columns));
    rowHeight = Math.max(1, Math.min(6, Math.floor((HEIGHT_MAX / layers - GAP) / heads)));
    const width = columns * columnWidth, height = layers * (heads * rowHeight + GAP);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    const shades = palette(), line = colours().line, pixels = image.data;
    let p = 0;
    for (let y = 0; y < height; y++) {
      const layer = Math.floor(y / (heads * rowHeight + GAP)), row = y - layer * (heads * rowHeight + GAP);
      const first = (layer * heads + Math.floor(row / rowHeight)) * columns;
      for (let x = 0; x < width; x++) {
        const shade = row >= heads * rowHeight ? line : shades[cells[first + Math.floor(x / columnWidth)]];
        pixels[p++] = shade[0];
        pixels[p++] = shade[1];
        pixels[p++] = shade[2];
        pixels[p++] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    if (at) markChunk(context, columnWidth);
  }

  function topOf(lane) {
    const heads = shown.kv_heads, layer = Math.floor(lane / heads);
    return layer * (heads * rowHeight + GAP) + (lane % heads) * rowHeight;
  }

  function markChunk(context, columnWidth) {
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--front");
    context.lineWidth = 2;
    context.strokeRect(at.column * columnWidth - 1, topOf(at.lane) - 1, columnWidth + 2, rowHeight + 2);
  }

  // ---- telling ----

  function stateText() {
    if (shown.state === "none") return "Nothing was read yet.";
    if (shown.state === "reading") return "Reading a prompt, layer by layer.";
    if (shown.state === "answering") return "Answering: token " + count(shown.position) + ".";
    return count(shown.tokens) + " tokens" + (shown.position !== undefined ? ", and what the last one attended to." : ".");
  }

  /** What was left out of the attention since the map before this one; or since the server began. */
  function receiptText() {
    const receipt = shown.receipt;
    if (!receipt) return "nothing left out, or not estimated (loam serve --receipt)";
    const lately = before && receipt.count > before.count;
    const mean = lately ? (receipt.sum - before.sum) / (receipt.count - before.count) : receipt.mean;
    return (100 * mean).toFixed(2) + "% of the attention left out " + (lately ? "by the last tokens" : "so far") +
      ", by a sample; worst head " + (100 * receipt.worst_head).toFixed(1) + "%";
  }

  /** On a card: what its memory has of K, V and key index, and how much of what was listed its slots had. */
  function cardText() {
    const units = (what) => shown["kv_unit_" + what] + shown["kv_unit_chunk_" + what];
    const all = units("hits") + units("misses") + units("direct");
    return size(shown.kv_device_bytes) + " of KV and key index" + (shown.kv_unit_bytes > 0
      ? `, ${size(shown.kv_unit_bytes)} of slots` + (all > 0 ? `, which had ${percent(units("hits"), all)} of what was attended to` : "") : "");
  }

  function tell() {
    $$("state").textContent = stateText();
    $$("shown").hidden = !shown.columns;
    if (!shown.columns) return;
    const { chunks, token, watched } = shown;
    const reading = shown.state === "reading";
    $$("rows").textContent = `${shown.layers} layers of ${shown.kv_heads} KV head${shown.kv_heads > 1 ? "s" : ""}, the first above; ` +
      `columns of ${shown.column_tokens} tokens.`;
    $$("full").hidden = shown.selects;
    $$("end").textContent = count(Math.max(shown.tokens, (shown.columns - 1) * shown.column_tokens));
    $$("ram").textContent = `${percent(chunks.ram, chunks.all)}: ${count(chunks.ram)} of ${count(chunks.all)} chunks, ` +
      `${count(chunks.disk_only)} on disk alone`;
    const onCard = shown.kv_device_bytes !== undefined;
    $$("card-name").hidden = $$("card").hidden = !onCard;
    $$("card").textContent = onCard ? cardText() : "";
    const wanted = token.hits + token.misses, all = watched.hits + watched.misses;
    $$("hits").textContent = all === 0 ? "everything is in RAM"
      : `${wanted ? percent(token.hits, wanted) + (reading ? " of this prompt, " : " of this token, ") : ""}${percent(watched.hits, all)} since it was opened`;
    $$("attends").textContent = reading || shown.position === undefined ? "–"
      : `${percent(token.attended_rows, token.visible_rows)} of the context, ${size(token.attended_bytes)} of KV`;
    $$("reads").textContent = reading || shown.position === undefined ? "–" : size(token.read_bytes);
    $$("receipt").textContent = receiptText();
    $$("summary").textContent = `${count(chunks.ram)} of ${count(chunks.all)} chunks are in RAM. ` + (reading ? "" :
      `The last token attended to ${count(chunks.attended)} and fetched ${count(chunks.read)} from disk.`);
    tellChunk();
  }

  function tellChunk() {
    if (!at || !shown || at.column >= shown.columns) { $$("cell").textContent = ""; return; }
    const bits = cells[at.lane * shown.columns + at.column];
    const ram = bits & 3, rows = bits >> 2 & 3;
    const some = ["none", "some", "half or more", "all"];
    const first = at.column * shown.column_tokens;
    const last = Math.max(first, Math.min(shown.tokens, first + shown.column_tokens) - 1);
    const where = ram === 3 ? (bits & 32 ? "in RAM and on disk" : "in RAM") : ram ? some[ram] + " in RAM, the rest on disk" : bits & 32 ? "on disk" : "not there yet";
    $$("cell").textContent = `Layer ${Math.floor(at.lane / shown.kv_heads)}, KV head ${at.lane % shown.kv_heads}, tokens ${count(first)} to ${count(last)}: ${where}` +
      (bits & 16 ? ", just fetched" : "") + (rows ? `; ${some[rows]} attended to` : "") + ".";
  }

  // ---- the panel ----

  function move(lane, column) {
    if (!shown || !shown.columns) return;
    at = { lane: Math.max(0, Math.min(shown.layers * shown.kv_heads - 1, lane)), column: Math.max(0, Math.min(shown.columns - 1, column)) };
    draw();
    tellChunk();
  }

  function point(event) {
    if (!shown || !shown.columns) return;
    const canvas = $$("canvas"), box = canvas.getBoundingClientRect();
    const y = (event.clientY - box.top) / box.height * canvas.height, x = (event.clientX - box.left) / box.width;
    const layer = Math.floor(y / (shown.kv_heads * rowHeight + GAP));
    const head = Math.min(shown.kv_heads - 1, Math.floor((y - layer * (shown.kv_heads * rowHeight + GAP)) / rowHeight));
    move(layer * shown.kv_heads + head, Math.floor(x * shown.columns));
  }

  function show(open) {
    document.getElementById("map").hidden = !open;
    $$("open").setAttribute("aria-expanded", String(open));
    $$("refresh").hidden = !still.matches;
    try { localStorage.setItem("loam-map", open ? "open" : ""); } catch { /* not kept */ }
    clearTimeout(timer);
    if (open) ask();
  }

  function bind() {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const canvas = $$("canvas");
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerleave", () => { at = null; draw(); tellChunk(); });
    canvas.addEventListener("blur", () => { at = null; draw(); tellChunk(); });
    canvas.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      if (at) move(at.lane + step[0], at.column + step[1]); else move(0, 0);
    });
    $$("open").addEventListener("click", () => show(document.getElementById("map").hidden));
    $$("refresh").addEventListener("click", ask);
    still.addEventListener("change", () => show(isOpen()));
    document.addEventListener("visibilitychange", () => { if (!document.hidden && isOpen()) ask(); });
    let kept = "";
    try { kept = localStorage.getItem("loam-map"); } catch { /* not kept */ }
    if (kept === "open") show(true);
  }

  /** Something began or ended. */
  const soon = () => { if (isOpen()) ask(); };

  return { bind, draw, show, soon };
})();
