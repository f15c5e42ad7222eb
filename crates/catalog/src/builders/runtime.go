
import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxTTLMs is about a hundred years: a longer TTL is a mistake.
const MaxTTLMs int64 = 36525 * 86400000

const digestLength = 40

// Unbounded keys do not expire.
type Unbounded struct{}

// Fixed keys always have the same TTL.
type Fixed struct{ TtlMs int64 }

// Default keys have this TTL unless the writer chooses another; AtMostMs 0: without bound.
type Default struct{ TtlMs, AtMostMs int64 }

// Renewable keys have a TTL that is extended while they are in use; AtMostMs 0: without bound.
type Renewable struct{ TtlMs, AtMostMs int64 }

// Ranged keys have a TTL that the writer chooses between bounds; MaxMs 0: without bound.
type Ranged struct{ MinMs, MaxMs int64 }

// Given keys have a TTL that the data of the writer determines, plus a grace period.
type Given struct{ PlusMs int64 }

// Lifetime is the rule for the TTL of a key.
type Lifetime interface {
	Unbounded | Fixed | Default | Renewable | Ranged | Given
}

// Key is a key in both layouts, with its lifetime.
type Key[L Lifetime] struct {
	Entry, Plain, Cluster string
	Lifetime              L
}

// Channel is a channel in both layouts.
type Channel struct {
	Entry, Plain, Cluster string
}

// TTL returns the TTL in milliseconds to write a key with, 0: without one. The chosen TTL is 0 if the writer chooses none.
func (key Key[L]) TTL(chosen int64) (int64, error) {
	least, most, ttl := int64(1), MaxTTLMs, chosen
	bound := func(ms int64) {
		if ms > 0 {
			most = ms
		}
	}
	switch rule := any(key.Lifetime).(type) {
	case Unbounded:
		if chosen != 0 {
			return 0, fmt.Errorf("%s has no TTL to choose", key.Entry)
		}
		return 0, nil
	case Fixed:
		if chosen != 0 {
			return 0, fmt.Errorf("%s has no TTL to choose", key.Entry)
		}
		return rule.TtlMs, nil
	case Default:
		bound(rule.AtMostMs)
		if chosen == 0 {
			ttl = rule.TtlMs
		}
	case Renewable:
		bound(rule.AtMostMs)
		if chosen == 0 {
			ttl = rule.TtlMs
		}
	case Ranged:
		least = rule.MinMs
		bound(rule.MaxMs)
	case Given:
		if rule.PlusMs > least {
			least = rule.PlusMs
		}
		ttl = chosen + rule.PlusMs
	}
	if ttl < least || ttl > most {
		return 0, fmt.Errorf("a TTL of %d ms is not allowed for %s: use %d to %d", ttl, key.Entry, least, most)
	}
	return ttl, nil
}

var hashedForm = regexp.MustCompile(`\A(?:[a-z0-9]+(?:-[a-z0-9]+)*)?~[0-9a-f]{40}\z`)

func encode(kind, text string, maxBytes int, hashed, sensitive bool, reserved []string, separators string) (string, error) {
	if text == "" {
		return "", errors.New(kind + " is empty: it needs at least one character")
	}
	if !utf8.ValidString(text) {
		return "", errors.New(kind + " is not valid UTF-8")
	}
	if !hashed && len(text) <= maxBytes {
		ambiguous := hashedForm.MatchString(text)
		for _, word := range reserved {
			ambiguous = ambiguous || word == text
		}
		var written strings.Builder
		for position := 0; position < len(text); position++ {
			octet := text[position]
			if octet < 0x20 || octet >= 0x7f || strings.IndexByte(":{}% "+separators, octet) >= 0 || (ambiguous && position == 0) {
				fmt.Fprintf(&written, "%%%02X", octet)
			} else {
				written.WriteByte(octet)
			}
		}
		if written.Len() <= maxBytes {
			return written.String(), nil
		}
	}
	room := maxBytes - digestLength - 1
	if sensitive {
		room = 0
	}
	sum := sha256.Sum256([]byte(text))
	return slug(text, room) + "~" + hex.EncodeToString(sum[:])[:digestLength], nil
}

func slug(text string, room int) string {
	slug := ""
	for _, letter := range text {
		lower := []rune{unicode.ToLower(letter)}
		if letter == 'İ' {
			// The only letter whose lower case has two characters.
			lower = []rune{'i', '\u0307'}
		}
		for _, character := range lower {
			if len(slug) >= room {
				return strings.TrimRight(slug, "-")
			}
			if (character >= 'a' && character <= 'z') || (character >= '0' && character <= '9') {
				slug += string(character)
			} else if slug != "" && !strings.HasSuffix(slug, "-") {
				slug += "-"
			}
		}
	}
	return strings.TrimRight(slug, "-")
}
