// What may stand where the cursor is: the field's form, default and meaning, or the keys that go on from here.

import { element } from "../api.js";
import { fieldsOf } from "../yamlline.js";

const MOST = 16;
const known = JSON.parse(document.getElementById("known-fields").content.textContent);
const box = document.getElementById("completion");

export function mount(spec, changed) {
  for (const event of ["keyup", "click", "focus"]) spec.addEventListener(event, () => show(spec, changed));
}

// The path at an offset and how much of its last name is written.
export function placeOf(text, offset) {
  const start = text.lastIndexOf("\n", offset - 1) + 1,
    end = text.indexOf("\n", offset);
  const line = text.slice(start, end < 0 ? text.length : end);
  const name = /^(\s*(?:-\s+)*)([\w.]*)/.exec(line);
  const isKey = /^\s*(?:-\s+)*[A-Za-z_][\w.]*:/.test(line);
  const fields = fieldsOf(`${text.slice(0, start)}${name[1]}${name[2] || "x"}: `);
  const path = fields.length ? fields[fields.length - 1].path : [name[2]];
  return { path, isKey, typed: name[2], from: start + name[1].length };
}

const written = (path) => path.reduce((all, name) => (/^\d+$/.test(name) ? `${all}[]` : all ? `${all}.${name}` : name), "");

function show(spec, changed) {
  if (spec.value.trimStart().startsWith("{")) return box.replaceChildren();
  const place = placeOf(spec.value, spec.selectionStart),
    here = written(place.path);
  const field = known.find((one) => one.path === here);
  if (field && place.isKey) {
    const about = `${field.form}; ${field.default === "required" ? "required" : `default ${field.default}`}. `;
    return box.replaceChildren(element("code", {}, field.path), " ", about, field.description);
  }
  const around = place.isKey ? here : written(place.path.slice(0, -1));
  return box.replaceChildren(...keys(spec, place, around, changed));
}

function keys(spec, place, around, changed) {
  const prefix = around ? `${around}.` : "",
    typed = place.isKey ? "" : place.typed;
  const inside = known.filter((one) => one.path.startsWith(prefix)).map((one) => one.path.slice(prefix.length));
  const names = [...new Set(inside.map((rest) => rest.split(/[.[]/)[0]))].filter((name) => name.startsWith(typed));
  if (!names.length) return [];
  const buttons = names.slice(0, MOST).map((name) =>
    element("button", { type: "button", class: "quiet", disabled: place.isKey, onclick: () => insert(spec, place, name, changed) }, name),
  );
  const more = names.length > MOST ? ` and ${names.length - MOST} more` : "";
  return [`${around || "A specification"} may hold: `, ...buttons, more];
}

function insert(spec, place, name, changed) {
  spec.setRangeText(`${name}: `, place.from, place.from + place.typed.length, "end");
  spec.focus();
  changed();
}
