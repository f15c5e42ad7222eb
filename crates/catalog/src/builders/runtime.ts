
import { createHash } from "node:crypto";

/** A longer TTL is a mistake, and overflows in the server. */
export const MAX_TTL_MS = 36_525 * 86_400_000;
const DIGEST_LENGTH = 40;
/*<*/
/** The key does not expire. */
export type Unbounded = { kind: "Unbounded" };
/** The key always has the same TTL. */
export type Fixed = { kind: "Fixed"; ttlMs: number };
/** The key has this TTL unless the writer chooses another. */
export type Default = { kind: "Default"; ttlMs: number; atMostMs?: number };
/** The TTL is extended while the key is in use. */
export type Renewable = { kind: "Renewable"; ttlMs: number; atMostMs?: number };
/** The writer chooses the TTL between bounds. */
export type Ranged = { kind: "Ranged"; minMs: number; maxMs?: number };
/** The data of the writer determines the TTL, plus a grace period. */
export type Given = { kind: "Given"; plusMs: number };
export type Lifetime = Unbounded | Fixed | Default | Renewable | Ranged | Given;

/** A key in both layouts, with its lifetime. */
export interface Key<L extends Lifetime> {
  readonly entry: string;
  readonly plain: string;
  readonly cluster: string;
  readonly lifetime: L;
}

/** A channel in both layouts. */
export interface Channel {
  readonly entry: string;
  readonly plain: string;
  readonly cluster: string;
}

/** An identifier, encoded so that it stays in its segment. */
export interface Identifier<K extends string> {
  readonly kind: K;
  readonly written: string;
}

interface Rules {
  maxBytes: number;
  hashed: boolean;
  sensitive: boolean;
  reserved: string[];
  separators: string;
}
/*>*/
/** The TTL to write a key with; undefined: without one. Throws a RangeError if the catalog does not allow it. */
export function ttlMs(key/*<*/: Key<Lifetime>/*>*/, chosen/*<*/?: number/*>*/)/*<*/: number | undefined/*>*/ {
  const rule = key.lifetime;
  let least = 1;
  let most/*<*/: number | undefined/*>*/ = undefined;
  let ttl = chosen;
  switch (rule.kind) {
    case "Unbounded":
    case "Fixed":
      if (chosen !== undefined) throw new RangeError(`${key.entry} has no TTL to choose`);
      return rule.kind === "Fixed" ? rule.ttlMs : undefined;
    case "Default":
    case "Renewable":
      ttl = chosen ?? rule.ttlMs;
      most = rule.atMostMs;
      break;
    case "Ranged":
      least = rule.minMs;
      most = rule.maxMs;
      break;
    case "Given":
      least = Math.max(1, rule.plusMs);
      ttl = chosen === undefined ? undefined : chosen + rule.plusMs;
      break;
  }
  if (ttl === undefined) throw new RangeError(`${key.entry} needs a TTL that the writer chooses`);
  if (!(ttl >= least && ttl <= (most ?? MAX_TTL_MS))) {
    throw new RangeError(`a TTL of ${ttl} ms is not allowed for ${key.entry}: use ${least} to ${most ?? MAX_TTL_MS}`);
  }
  return ttl;
}

function member/*<*/<K extends string>/*>*/(kind/*<*/: K/*>*/, written/*<*/: string/*>*/)/*<*/: Identifier<K>/*>*/ {
  return { kind, written };
}

function identifier/*<*/<K extends string>/*>*/(kind/*<*/: K/*>*/, text/*<*/: string/*>*/, rules/*<*/: Rules/*>*/)/*<*/: Identifier<K>/*>*/ {
  if (text.length === 0) throw new RangeError(`${kind} is empty: it needs at least one character`);
  if (/[\uD800-\uDFFF]/u.test(text)) throw new RangeError(`${kind} is not valid Unicode`);
  return { kind, written: readable(text, rules) ?? hashed(text, rules) };
}

function readable(text/*<*/: string/*>*/, rules/*<*/: Rules/*>*/)/*<*/: string | undefined/*>*/ {
  const bytes = Buffer.from(text, "utf8");
  if (rules.hashed || bytes.length > rules.maxBytes) return undefined;
  const ambiguous = rules.reserved.includes(text) || isHashed(text);
  const escaped = Buffer.from(":{}% " + rules.separators, "ascii");
  let written = "";
  bytes.forEach((byte, position) => {
    const encode = byte < 0x20 || byte >= 0x7f || escaped.includes(byte) || (ambiguous && position === 0);
    written += encode ? "%" + byte.toString(16).toUpperCase().padStart(2, "0") : String.fromCharCode(byte);
  });
  return written.length <= rules.maxBytes ? written : undefined;
}

function hashed(text/*<*/: string/*>*/, rules/*<*/: Rules/*>*/)/*<*/: string/*>*/ {
  const room = rules.sensitive ? 0 : rules.maxBytes - DIGEST_LENGTH - 1;
  const digest = createHash("sha256").update(text, "utf8").digest("hex").slice(0, DIGEST_LENGTH);
  return `${slug(text, room)}~${digest}`;
}

function slug(text/*<*/: string/*>*/, room/*<*/: number/*>*/)/*<*/: string/*>*/ {
  let slug = "";
  // Letter by letter: the lower case of some letters depends on their neighbours.
  for (const letter of text) {
    for (const character of letter.toLowerCase()) {
      if (slug.length >= room) return slug.replace(/-+$/, "");
      if (/^[a-z0-9]$/.test(character)) slug += character;
      else if (slug !== "" && !slug.endsWith("-")) slug += "-";
    }
  }
  return slug.replace(/-+$/, "");
}

function isHashed(text/*<*/: string/*>*/)/*<*/: boolean/*>*/ {
  return /^(?:[a-z0-9]+(?:-[a-z0-9]+)*)?~[0-9a-f]{40}$/.test(text) && !text.endsWith("\n");
}
