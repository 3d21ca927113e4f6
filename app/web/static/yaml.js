// A specification as YAML that every reader of YAML 1.1 and 1.2 reads alike.

const PLAIN = /^[A-Za-z_][\w./ -]*$/;
const WORDS = /^(true|false|yes|no|on|off|null|y|n|\.nan|\.inf)$/i;

export function scalar(value) {
  if (typeof value === "string")
    return PLAIN.test(value) && !WORDS.test(value) && value === value.trim() ? value : JSON.stringify(value);
  // "1e-7" would be a word to readers of YAML 1.1
  if (typeof value === "number") return String(value).replace(/^(-?\d+)e/, "$1.0e");
  return String(value);
}

const isPlain = (value) => value === null || typeof value !== "object";
const isEmpty = (value) => !isPlain(value) && Object.keys(value).length === 0;

function flow(value) {
  if (isPlain(value)) return scalar(value);
  return Array.isArray(value) ? `[${value.map(flow).join(", ")}]` : "{}";
}

export function yaml(value, indent = "") {
  if (Array.isArray(value))
    return value
      .map((item) => `${indent}- ${isPlain(item) ? scalar(item) : yaml(item, `${indent}  `).trimStart()}`)
      .join("\n");
  return Object.entries(value)
    .map(([key, item]) => {
      const name = `${indent}${scalar(key)}:`;
      const isShort = isPlain(item) || isEmpty(item) || (Array.isArray(item) && item.every(isPlain));
      if (isShort) return `${name} ${flow(item)}`;
      return `${name}\n${yaml(item, `${indent}  `)}`;
    })
    .join("\n");
}
