// Renders /openapi.json as a page. All content is inserted as text, never as HTML.

const element = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};

const styled = (tag, className, text) => {
  const node = element(tag, text);
  node.className = className;
  return node;
};

// An example value of a schema. The depth is limited, because schemas can be recursive.
const MAX_DEPTH = 6;
const example = (schema, all, depth = 0) => {
  if (!schema || depth > MAX_DEPTH) return null;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1);
  const variant = schema.oneOf ?? schema.anyOf ?? schema.allOf;
  if (variant) return example(variant.find((candidate) => candidate.type !== "null") ?? variant[0], all, depth + 1);
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type.find((type) => type !== "null") : schema.type;
  if (type === "array") return [example(schema.items, all, depth + 1)];
  if (type === "object" || schema.properties) {
    const field = ([name, value]) => [name, example(value, all, depth + 1)];
    return Object.fromEntries(Object.entries(schema.properties ?? {}).map(field));
  }
  if (type === "integer" || type === "number") return 0;
  if (type === "boolean") return false;
  return schema.format === "date-time" ? "2026-01-31T12:00:00.000000Z" : "…";
};

const fields = (schema, all) => {
  const resolved = schema?.$ref ? all[schema.$ref.split("/").pop()] : schema;
  const table = element("table");
  for (const [name, field] of Object.entries(resolved?.properties ?? {})) {
    const required = (resolved.required ?? []).includes(name) ? "required" : "";
    table.append(element("tr", "", element("td", "", element("code", name)), element("td", required), element("td", field.description ?? "")));
  }
  return table;
};

const bodyOf = (part) => Object.values(part?.content ?? {})[0]?.schema;

const operation = (path, method, about, all) => {
  const inside = element("div");
  if (about.description) inside.append(element("p", about.description));
  const parameters = element("table");
  for (const parameter of about.parameters ?? []) {
    parameters.append(element("tr", "", element("td", "", element("code", parameter.name)), element("td", parameter.in), element("td", parameter.description ?? "")));
  }
  if (parameters.rows.length) inside.append(element("h4", "Parameters"), parameters);
  const body = bodyOf(about.requestBody);
  if (body) {
    inside.append(element("h4", "Body"), fields(body, all), element("pre", JSON.stringify(example(body, all), null, 2)));
  }
  inside.append(element("h4", "Responses"));
  for (const [status, response] of Object.entries(about.responses ?? {})) {
    inside.append(element("p", "", element("strong", status + " "), response.description ?? ""));
    const schema = bodyOf(response);
    if (schema && status.startsWith("2")) inside.append(element("pre", JSON.stringify(example(schema, all), null, 2)));
  }
  const summary = element("summary", "", styled("span", "method", method.toUpperCase()), element("code", path), styled("span", "about", about.summary ?? ""));
  return element("details", "", summary, inside);
};

const render = (api) => {
  const main = document.getElementById("api");
  main.replaceChildren();
  const all = api.components?.schemas ?? {};
  for (const tag of api.tags ?? []) {
    main.append(element("h2", tag.name), element("p", tag.description ?? ""));
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const [method, about] of Object.entries(methods)) {
        if ((about.tags ?? []).includes(tag.name)) main.append(operation(path, method, about, all));
      }
    }
  }
};

try {
  const response = await fetch("/openapi.json");
  render(await response.json());
} catch (error) {
  document.getElementById("api").replaceChildren(element("p", `Cannot load /openapi.json: ${error}`));
}
