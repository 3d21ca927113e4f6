// Where each field stands in a specification as it is written, so that a form and an editor change one text.
// Sections are told by their indentation; what stands in braces or brackets is one value.

import { scalar } from "./yaml.js";

const KEY = /^([A-Za-z_][\w.]*):(?=\s|$)/;
const ITEM = /^-\s+/;

// [{path: names and numbers of items, line, indent, value, from, to}], from and to of the value without its comment.
export function fieldsOf(text) {
  const found = [],
    open = [];
  const note = (name, indent, line, isItem) => {
    open.push({ name, indent, isItem, items: 0 });
    const entry = { path: open.map((one) => one.name), line, indent, value: "", from: 0, to: 0 };
    found.push(entry);
    return entry;
  };
  let start = 0;
  for (const [line, whole] of text.split("\n").entries()) {
    let at = whole.search(/[^\s]/);
    while (at >= 0 && at < whole.length && whole[at] !== "#") {
      const rest = whole.slice(at);
      const item = ITEM.exec(rest),
        key = KEY.exec(rest);
      if (!item && !key) break;
      const isOver = (one) => one.indent > at || (one.indent === at && (one.isItem || !item));
      while (open.length && isOver(open[open.length - 1])) open.pop();
      const parent = open[open.length - 1];
      if (item && !parent) break;
      const entry = note(item ? String(parent.items++) : key[1], at, line, Boolean(item));
      at += (item || key)[0].length;
      const value = bare(whole.slice(at));
      const lead = value.search(/[^\s]|$/);
      Object.assign(entry, { value: value.trim(), from: start + at + lead, to: start + at + value.trimEnd().length });
      if (key || !KEY.test(whole.slice(at))) break;
    }
    start += whole.length + 1;
  }
  return found;
}

// Without the comment behind it: a mark of one counts outside quotes and after a blank only.
function bare(text) {
  let quote = "";
  for (let i = 0; i < text.length; i++) {
    if (quote) quote = text[i] === quote ? "" : quote;
    else if (text[i] === '"' || text[i] === "'") quote = text[i];
    else if (text[i] === "#" && (i === 0 || /\s/.test(text[i - 1]))) return text.slice(0, i);
  }
  return text;
}

const isSame = (path, other) => path.length === other.length && path.every((name, index) => name === other[index]);

export const entryOf = (fields, path) => fields.find((entry) => isSame(entry.path, path));

// The entry that a JSON pointer names, or the nearest one around it.
export function entryAt(fields, pointer) {
  let path = pointer
    .split("/")
    .slice(1)
    .map((name) => name.replaceAll("~1", "/").replaceAll("~0", "~"));
  for (; path.length; path = path.slice(0, -1)) {
    const entry = entryOf(fields, path);
    if (entry) return entry;
  }
  return null;
}

// The value of a field as a word, null where it does not stand in the text.
export function valueOf(fields, path) {
  const entry = entryOf(fields, path);
  if (!entry) return null;
  const { value } = entry;
  return /^".*"$/.test(value) || /^'.*'$/.test(value) ? value.slice(1, -1) : value;
}

// Whether one value can stand there: no list, no mapping, in braces or below.
export function isPlain(fields, path) {
  const own = entryOf(fields, path),
    around = path.slice(0, -1).map((_, index) => entryOf(fields, path.slice(0, index + 1)));
  const isBelow = (other) => other.length > path.length && isSame(other.slice(0, path.length), path);
  const holdsMore = fields.some((entry) => isBelow(entry.path));
  return !holdsMore && !(own && /^[[{]/.test(own.value)) && around.every((entry) => !entry || !entry.value);
}

// The text with another value of a field, added in its section where it is missing.
export function withValue(text, path, value) {
  const fields = fieldsOf(text),
    entry = entryOf(fields, path),
    written = scalar(value);
  if (entry) {
    const gap = text[entry.from - 1] === ":" ? " " : "";
    return text.slice(0, entry.from) + gap + written + text.slice(entry.to);
  }
  const [section, name] = path,
    parent = entryOf(fields, [section]);
  if (!parent) return `${text.trimEnd()}\n${section}:\n  ${name}: ${written}\n`.trimStart();
  const child = fields.find((one) => one.path.length === 2 && one.path[0] === section);
  const lines = text.split("\n");
  lines.splice(parent.line + 1, 0, `${" ".repeat(child ? child.indent : 2)}${name}: ${written}`);
  return lines.join("\n");
}
