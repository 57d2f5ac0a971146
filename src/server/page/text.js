// Text to elements: a small part of Markdown.  All text reaches the page by textContent.

const $ = (id) => document.getElementById(id);
const count = (n) => Number(n).toLocaleString("en");
const size = (n) => n < 1000 ? n + " B" : n < 1e6 ? (n / 1000).toFixed(0) + " kB" : n < 1e9 ? (n / 1e6).toFixed(1) + " MB" : (n / 1e9).toFixed(2) + " GB";

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((c) => c !== null && c !== undefined));
  return made;
}

/** Rows of a list, drawn anew: the focus stays on the same row's. */
function drawRows(list, rows) {
  const focused = document.activeElement, place = list.contains(focused)
    ? [focused.closest("li").dataset.id, [...focused.parentElement.children].indexOf(focused)] : null;
  list.replaceChildren(...rows);
  if (place) list.querySelector(`[data-id="${place[0]}"]`)?.children[place[1]]?.focus();
}

/** waits: until no answer is on its way. */
function button(label, title, act, waits) {
  return element("button", { type: "button", title, class: waits && "waits", onclick: act }, label);
}

/** What happened since, in words. */
function ago(seconds) {
  const units = [[60, "minute"], [3600, "hour"], [86400, "day"]];
  const [length, name] = units.findLast(([n]) => seconds >= n) || [];
  if (!length) return "just now";
  const number = Math.floor(seconds / length);
  return `${number} ${name}${number > 1 ? "s" : ""} ago`;
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

const cellsOf = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function table([head, , ...rows]) {
  const row = (name, line) => element("tr", {}, ...cellsOf(line).map((cell) => element(name, {}, ...inline(cell))));
  return element("div", { class: "table", tabindex: "0" }, element("table", {},
    element("thead", {}, row("th", head)), element("tbody", {}, ...rows.map((line) => row("td", line)))));
}

/** Lines of one block; the kind decides. */
function block(lines) {
  if (lines[0].includes("|") && /^[ |:-]*-[ |:-]*$/.test(lines[1] ?? "")) return table(lines);
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
