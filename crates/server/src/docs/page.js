// Draws /openapi.json as a page. Everything is put in as text, never as HTML.

const make = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};

const styled = (tag, name, text) => {
  const node = make(tag, text);
  node.className = name;
  return node;
};

// A value that shows the shape of a schema; deeper than a few levels it ends.
const example = (schema, all, depth = 0) => {
  if (!schema || depth > 6) return null;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1);
  const variant = schema.oneOf ?? schema.anyOf ?? schema.allOf;
  if (variant) return example(variant.find((one) => one.type !== "null") ?? variant[0], all, depth + 1);
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type;
  if (type === "array") return [example(schema.items, all, depth + 1)];
  if (type === "object" || schema.properties) {
    const of = (entry) => [entry[0], example(entry[1], all, depth + 1)];
    return Object.fromEntries(Object.entries(schema.properties ?? {}).map(of));
  }
  if (type === "integer" || type === "number") return 0;
  if (type === "boolean") return false;
  return schema.format === "date-time" ? "2026-01-31T12:00:00.000000Z" : "…";
};

const fields = (schema, all) => {
  const found = schema?.$ref ? all[schema.$ref.split("/").pop()] : schema;
  const table = make("table");
  for (const [name, field] of Object.entries(found?.properties ?? {})) {
    const needed = (found.required ?? []).includes(name) ? "needed" : "";
    table.append(make("tr", "", make("td", "", make("code", name)), make("td", needed), make("td", field.description ?? "")));
  }
  return table;
};

const bodyOf = (part) => Object.values(part?.content ?? {})[0]?.schema;

const operation = (path, method, about, all) => {
  const inside = make("div");
  if (about.description) inside.append(make("p", about.description));
  const parameters = make("table");
  for (const one of about.parameters ?? []) {
    parameters.append(make("tr", "", make("td", "", make("code", one.name)), make("td", one.in), make("td", one.description ?? "")));
  }
  if (parameters.rows.length) inside.append(make("h4", "Parameters"), parameters);
  const body = bodyOf(about.requestBody);
  if (body) {
    inside.append(make("h4", "Body"), fields(body, all), make("pre", JSON.stringify(example(body, all), null, 2)));
  }
  inside.append(make("h4", "Answers"));
  for (const [status, answer] of Object.entries(about.responses ?? {})) {
    inside.append(make("p", "", make("strong", status + " "), answer.description ?? ""));
    const schema = bodyOf(answer);
    if (schema && status.startsWith("2")) inside.append(make("pre", JSON.stringify(example(schema, all), null, 2)));
  }
  const summary = make("summary", "", styled("span", "method", method.toUpperCase()), make("code", path), styled("span", "about", about.summary ?? ""));
  return make("details", "", summary, inside);
};

const draw = (api) => {
  const main = document.getElementById("api");
  main.replaceChildren();
  const all = api.components?.schemas ?? {};
  for (const tag of api.tags ?? []) {
    main.append(make("h2", tag.name), make("p", tag.description ?? ""));
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const [method, about] of Object.entries(methods)) {
        if ((about.tags ?? []).includes(tag.name)) main.append(operation(path, method, about, all));
      }
    }
  }
};

try {
  const answer = await fetch("/openapi.json");
  draw(await answer.json());
} catch (error) {
  document.getElementById("api").replaceChildren(make("p", `The description could not be loaded: ${error}`));
}
