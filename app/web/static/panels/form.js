// The fields that nearly every experiment sets, as a form on the text of the specification: each changes the other.

import { fieldsOf, isPlain, valueOf, withValue } from "../yamlline.js";

const inputs = [...document.querySelectorAll("#fields [data-path]")];
const pathOf = (input) => input.dataset.path.split(".");

export function mount(spec, changed) {
  for (const input of inputs)
    input.addEventListener("input", () => {
      const { value } = input;
      if (!value.trim() || !input.checkValidity()) return;
      spec.value = withValue(spec.value, pathOf(input), input.type === "number" ? Number(value) : value);
      changed();
    });
}

// Show what the text holds; a JSON text and a value in braces are edited below.
export function shown(spec) {
  const isJson = spec.value.trimStart().startsWith("{"),
    fields = isJson ? [] : fieldsOf(spec.value);
  for (const input of inputs) {
    input.disabled = isJson || !isPlain(fields, pathOf(input));
    input.title = input.disabled ? "more than one value: edit it below" : "";
    if (input !== document.activeElement) input.value = input.disabled ? "" : (valueOf(fields, pathOf(input)) ?? "");
  }
}
