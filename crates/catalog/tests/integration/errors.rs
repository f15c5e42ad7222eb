//! An invalid catalog yields one error message with a position, and never a panic.

use ade_catalog::Catalog;
use ade_testkit::effort;
use proptest::prelude::*;

const VALID: &str = include_str!("../fixtures/shop.toml");

/// The error after replacing `from` by `to`, with the text at its position.
fn error_after(from: &str, to: &str) -> (String, String) {
    assert!(VALID.contains(from), "the fixture has no {from:?}");
    let source = VALID.replacen(from, to, 1);
    let error = Catalog::parse("shop.toml", &source).expect_err("rejected");
    let line: String =
        source.lines().nth(error.line - 1).unwrap_or_default().chars().skip(error.column - 1).collect();
    assert_eq!(error.to_string(), format!("shop.toml:{}:{}: {}", error.line, error.column, error.message));
    assert!(!error.message.contains('\n'), "{error}");
    (error.message, line)
}

#[test]
fn reports_each_error_with_its_position() {
    // The replaced text, its replacement, a part of the message, and the text at the reported position.
    let cases = [
        ("[catalog]", "[catalog", "unclosed table", ""),
        ("title =", "titel =", "unknown field `titel`", "titel ="),
        ("type = \"hash\"", "type = \"hsh\"", "unknown variant `hsh`", "\"hsh\""),
        ("ttl = { exact = \"15s\" }", "ttl = \"forever\"", "expected \"none\" or a rule", "\"forever\""),
        ("ttl = { exact = \"15s\" }", "ttl = { exact = \"15 s\" }", "\"15 s\" is not a duration", "{ exact"),
        ("ttl = { exact = \"15s\" }", "ttl = { exakt = \"15s\" }", "unknown field `exakt`", ""),
        (
            "ttl = { exact = \"15s\" }",
            "ttl = { exact = \"15s\", like = \"cart.items\" }",
            "a ttl needs exactly one rule",
            "{ exact",
        ),
        (
            "ttl = { exact = \"15s\" }",
            "ttl = { exact = \"15s\", plus = \"1s\" }",
            "plus requires given",
            "{ exact",
        ),
        (
            "ttl = { exact = \"15s\" }",
            "ttl = { exact = \"15s\", maxlen = 5 }",
            "maxlen is for streams only",
            "{ exact",
        ),
        (
            "[\"10m\", \"15m\"]",
            "[\"15m\", \"10m\"]",
            "the range is reversed: 15m is longer than 10m",
            "{ range",
        ),
        ("at_most = \"2h\"", "at_most = \"2m\"", "30m is longer than at_most (2m)", "{ renewable"),
        (
            "like = \"cart.items\"",
            "like = \"cart.itms\"",
            "is not a key of this catalog; did you mean cart.items?",
            "{ like",
        ),
        ("like = \"cart.items\"", "like = \"cart.state\"", "uses like itself", "{ like"),
        ("shop:cart:{cart_id}:items", "shop:cart:{card_id}:items", "did you mean {cart_id}?", "{card_id}"),
        ("shop:cart:{cart_id}:items", "shop:cart:{zzz}:items", "add [[id]] name = \"zzz\"", "{zzz}"),
        ("shop:cart:{cart_id}:items", "shop:cart:{cart_id}{type}", "are ambiguous", "shop:cart"),
        ("shop:cart:{cart_id}:items", "shop:cart::{cart_id}", "a segment is empty", "shop:cart"),
        ("shop:cart:{cart_id}:items", "shop:cart*:{cart_id}", "'*' is not allowed in a pattern", "*:"),
        ("shop:{cart:{cart_id}}:items", "shop:{cart:{cart_id}:items", "is never closed", "{cart:"),
        (
            "shop:{cart:{cart_id}}:items",
            "shop:{cart:x}:items",
            "need the same identifiers",
            "\"shop:{cart:x}",
        ),
        (
            "formerly = [\"cart:{cart_id}\"]",
            "formerly = [\"cart:all\"]",
            "the same identifiers in the same order",
            "\"cart:all\"",
        ),
        (
            "name = \"cart.state\"",
            "name = \"cart.items\"",
            "cart.items is listed twice, or",
            "\"cart.items\"",
        ),
        ("name = \"cart.state\"", "name = \"state\"", "write group.name", "\"state\""),
        ("name = \"cart.state\"", "name = \"Cart.state\"", "write group.name", "\"Cart.state\""),
        ("name = \"eMail\"", "name = \"e_mail\"", "{eMail} is not declared", "{eMail}"),
        ("name = \"eMail\"", "name = \"e-mail\"", "is not a valid name", "\"e-mail\""),
        ("name = \"search\"", "name = \"Type\"", "already declared (as type)", "\"Type\""),
        ("example = \"c-17\"", "example = \"\"", "the example is not a valid cart_id", "\"\""),
        ("example = \"c-17\"\n", "\n", "needs an example", "\"cart_id\""),
        ("max_bytes = 50", "max_bytes = 40", "must be at least 41", "40"),
        ("max_bytes = 50", "max_bytes = 190", "must stay below 180", "\"shop:cart:index"),
        ("\"very:loud\"", "\"very loud\"", "is not a valid member", "\"very loud\""),
        ("\"very:loud\"", "\"INFO\"", "has the same Rust name as \"info\"", "\"INFO\""),
        ("purpose = \"results of searches\"", "purpose = \" \"", "needs an owner and a purpose", "\" \""),
        ("value = \"array of goods\"\n", "", "a string needs a value", "\"cache.search\""),
        ("score = \"Unix seconds\"\n", "", "a zset needs a score", "\"cart.index\""),
        (
            "value = \"open or closed\"",
            "value = \"x\"\nfields = [{ name = \"a\", type = \"string\", about = \"b\" }]",
            "a string has no fields",
            "{ name",
        ),
        ("name = \"count\"", "name = \"sku\"", "the field sku is listed twice", "{ name"),
        (
            "stream = \"audit.log\"",
            "stream = \"audit.lag\"",
            "is not a stream of this catalog; did you mean audit.log?",
            "\"audit.lag\"",
        ),
        ("names = [\"billing\", \"fraud-check\"]", "names = []", "name at least one consumer group", "[]"),
        ("separator = \".\"", "separator = \"-\"", "the separator must be one of", "\"-\""),
        ("pattern = \"shop:cart:*\"", "pattern = \"shop:cart\"", "must end in \":*\"", "\"shop:cart\""),
        (
            "ttl = { like = \"cart.items\" }",
            "ttl = \"none\"",
            "keys of the family carts always expire",
            "\"cart.state\"",
        ),
        ("shop:cart:index:{type}", "shop:cart:{type}:items", "can build the same key", "\"shop:cart:{type}"),
        ("pattern = \"shop:mail\"", "pattern = \"shop:audit\"", "can build the same key", "\"shop:audit\""),
        ("name = \"search\"", "name = \"self\"", "is not a valid name", "\"self\""),
        ("name = \"search\"", "name = \"e_mail\"", "already declared (as eMail)", "\"e_mail\""),
        ("name = \"cart.state\"", "name = \"cart.super\"", "write group.name", "\"cart.super\""),
        ("\"very:loud\"", "\"N24h\"", "has the same Rust name as \"N24h\"", "\"24h\""),
        ("\"billing\"", "\"fraud_check\"", "has the same Rust name as \"fraud_check\"", "\"fraud-check\""),
        ("\"billing\"", "\"bill ing\"", "is not a valid name of a consumer group", "\"bill ing\""),
        ("\"billing\"", "\"\"", "is not a valid name of a consumer group", "\"\""),
        ("shop:{cart:{cart_id}}:items", "shop:carts:{cart_id}", "needs a hash tag", "\"shop:carts"),
        ("given = \"duration of the campaign\"", "given = \" \"", "given is empty", "{ given"),
        ("maxlen = 1000", "maxlen = 0", "must be at least 1", "{ maxlen"),
        ("default = \"1h\"", "exact = \"1h\"", "at_most requires renewable or default", "{ exact"),
        ("default = \"1h\"", "default = \"2d\"", "2d is longer than at_most (1d)", "{ default"),
        (
            "ttl = { exact = \"15s\" }",
            "ttl = { exact = \"99999999999d\" }",
            "longer than a hundred years",
            "{ exact",
        ),
        (
            "score = \"Unix seconds\"",
            "score = \"x\"\nvalue = \"y\"",
            "cart.index is a zset: it has no value",
            "\"cart.index\"",
        ),
        (
            "shop:audit:readers",
            "shop:audit:{cart_id}",
            "the group needs the same identifiers as its stream",
            "\"shop:audit:{cart_id}\"",
        ),
        ("\"very:loud\"", "\"-\"", "with at least one letter or digit", "\"-\""),
        ("name = \"search\"", "name = \"Crate\"", "is not a valid name", "\"Crate\""),
        ("name = \"cart.state\"", "name = \"cart.my__state\"", "write group.name", "\"cart.my__state\""),
        ("key_limit = 180", "key_limit = 0", "a number from 1 to 1000", "0"),
        (
            "key_limit = 180",
            "key_limit = 102",
            "can reach 102 bytes and must stay below 102",
            "\"news.{cart:",
        ),
        (
            "format = \"json\"\nttl = { exact",
            "format = \"hash\"\nttl = { exact",
            "a string cannot have this format",
            "\"hash\"",
        ),
        (
            "must_expire = true",
            "must_expire = true\nformat = \"json\"",
            "does not have the format of the family carts",
            "\"cart.items\"",
        ),
        (
            "shop:draft:{eMail}",
            "shop:{cart_id}:{type}:{eMail}:{search}:{level}",
            "at most 4 identifiers",
            "\"shop:{cart_id}",
        ),
        (
            "formerly = [\"cart:{cart_id}\"]",
            "formerly = [\"shop:draft:{cart_id}\"]",
            "can build the same key",
            "\"shop:draft:{eMail}\"",
        ),
        ("shop:mail:{eMail}:{level}", "shop:mail:{eMail}:{eMail}", "{eMail} appears twice", "\"shop:mail"),
        ("max_bytes = 50", "max_bytes = 9223372036854775807", "must stay below 180", "\"shop:cart:index"),
    ];
    for (from, to, expected, position) in cases {
        let (message, at) = error_after(from, to);
        assert!(message.contains(expected), "{to:?}: {message:?} does not contain {expected:?}");
        assert!(at.starts_with(position), "{to:?}: points at {at:?}, not at {position:?} ({message})");
    }
}

#[test]
fn hash_tags_of_one_shape_need_the_same_identifiers() {
    let index = "pattern = \"shop:cart:index:{type}\"";
    let (message, at) =
        error_after(index, &format!("{index}\ncluster = \"shop:cart:index:{{cart:{{type}}}}\""));
    assert!(message.contains("contains cart_id in cart.items"), "{message}");
    assert!(at.starts_with("\"shop:cart:index:{cart:"), "{at}");
}

#[test]
fn compares_patterns_with_different_separators() {
    // `news.…` uses dots as separators; an identifier between colons may contain a dot.
    let key = |pattern: &str, separator: &str| {
        format!(
            "{VALID}\n[[key]]\nname = \"x.y\"\npattern = \"{pattern}\"\nseparator = \"{separator}\"\ntype = \"string\"\n\
             ttl = \"none\"\nowner = \"x\"\npurpose = \"x\"\nvalue = \"x\"\n"
        )
    };
    let load = |source: &str| Catalog::parse("shop.toml", source).map_err(|error| error.message);
    load(&key("shop:cart.{search}", ".")).expect("no other key starts with shop:cart and a dot");
    load(&key("shop:cache:{eMail}.x", ".")).expect("a hashed search has no dot");
    let clash = load(&key("shop:cart:index:{eMail}.x", ".")).expect_err("a type may end in .x");
    assert!(clash.contains("x.y and cart.index can build the same key"), "{clash}");
}

#[test]
fn rejects_an_entry_that_builds_one_key_in_two_ways() {
    // p with q:r gives the same key as p:q with r.
    let sets = "name = \"level\"\nabout = \"x\"\none_of = [\"p\", \"p:q\"]\n\n[[id]]\nname = \"other\"\nabout = \"x\"\none_of = [\"q:r\", \"r\"]\n\n[[id]]\nname = \"unheard\"";
    let source = VALID
        .replace("name = \"level\"", sets)
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:x:{level}:{other}\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("rejected");
    assert!(error.message.contains("the same key from two combinations"), "{error}");
}

#[test]
fn family_applies_to_every_member_of_a_closed_set() {
    let source = VALID
        .replace("pattern = \"shop:cart:*\"", "pattern = \"shop:mail:24h:*\"")
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:mail:{level}:all\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("rejected");
    assert!(error.message.contains("mail.match must have a ttl"), "{error}");
}

#[test]
fn family_applies_to_all_possible_identifiers() {
    let source = VALID
        .replace("pattern = \"shop:cart:*\"", "pattern = \"shop:special:*\"")
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:{type}:all\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("a type may be special");
    assert!(error.message.contains("mail.match must have a ttl"), "{error}");
}

#[test]
fn sanitises_descriptions() {
    let source = VALID
        .replace("purpose = \"contents of a cart\"", "purpose = \"contents\\n\\u001b[31m of a cart\"")
        .replace("owner = \"search\"", "owner = \"sea\\u202erch\"")
        .replace("name = \"sku\"", "name = \"s\\u0007ku\"");
    let catalog = Catalog::parse("shop.toml", &source).expect("valid");
    let shown = format!("{:?}", catalog.rows()) + &ade_catalog::reference::markdown([&catalog]);
    assert!(
        shown.contains("contents [31m of a cart") && shown.contains("sea rch") && shown.contains("`s ku`")
    );
    assert!(!shown.contains(['\u{1b}', '\u{202e}', '\u{7}']));
}

#[test]
fn finds_present_patterns_before_former_ones() {
    let catalog = Catalog::parse("shop.toml", VALID).expect("valid");
    let spelling = |key: &str| catalog.find(key).map(|found| found.layout);
    assert_eq!(spelling("cart:17"), Some(ade_catalog::find::MatchedLayout::Former));
    assert_eq!(spelling("shop:cart:17:items"), Some(ade_catalog::find::MatchedLayout::Plain));
    let families = |key: &str| catalog.families_of(key).count();
    assert_eq!(
        [families("shop:cart:17:items"), families("shop:{cart:17}:items"), families("shop:mail")],
        [1, 1, 0]
    );
}

#[test]
fn truncates_long_texts_in_messages() {
    let long = "z".repeat(60_000);
    let source = VALID.replace("shop:cart:{cart_id}:items", &format!("shop:cart:{{{long}}}:items"));
    let error = Catalog::parse("shop.toml", &source).expect_err("rejected");
    assert!(error.message.len() < 1000, "{} bytes", error.message.len());
}

#[test]
fn channel_may_have_the_name_of_a_key() {
    let source = VALID.replace(
        "pattern = \"news.{cart_id}.{level}\"\nseparator = \".\"",
        "pattern = \"shop:cart:{cart_id}:items\"",
    );
    Catalog::parse("shop.toml", &source).expect("separate namespaces");
}

#[test]
fn rejects_too_many_combinations() {
    let members: Vec<String> = (0..100).map(|number| format!("\"m{number}\"")).collect();
    let source = VALID
        .replace("name = \"type\"\n", &format!("name = \"a\"\nabout = \"a\"\none_of = [{0}]\n\n[[id]]\nname = \"b\"\nabout = \"b\"\none_of = [{0}]\n\n[[id]]\nname = \"type\"\n", members.join(", ")))
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:mail:{a}:{b}\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("rejected");
    assert!(error.message.contains("more than 4096 variants"), "{error}");

    let many: Vec<String> = (0..40_000).map(|number| format!("\"m{number}\"")).collect();
    let source = VALID.replace("\"info\", ", &format!("{}, ", many.join(", ")));
    let error = Catalog::parse("shop.toml", &source).expect_err("rejected");
    assert!(error.message.contains("the maximum is 1000"), "{error}");
}

#[test]
fn checks_the_segment_of_the_owner() {
    let source = include_str!("../fixtures/guild.toml");
    let rejected = |from: &str, to: &str| {
        Catalog::parse("guild.toml", &source.replacen(from, to, 1)).expect_err("rejected").message
    };
    assert!(rejected("owner = \"bakers\"", "owner = \"smiths\"").contains("must be its owner, \"smiths\""));
    assert!(rejected("{town}:bakers:oven", "{town}:smiths:oven").contains("must be its owner, \"bakers\""));
    assert!(rejected("name = \"bakers.oven\"", "name = \"ovens.oven\"").contains("name it \"bakers.oven\""));
    assert!(rejected("owner_segment = 2", "owner_segment = 0").contains("starts at 1"));
    let twin = source.replace("bakers", "smi_ths");
    assert!(Catalog::parse("guild.toml", &twin).is_ok(), "smi_ths is SmiThs, not Smiths");
    let twin = source.replace("smiths", "x1_2").replace("bakers", "x12");
    let error = Catalog::parse("guild.toml", &twin).expect_err("both are X12");
    assert!(error.message.contains("has the same Rust name"), "{error}");
    assert!(
        rejected("one_of = [\"north\", \"south\"]", "example = \"north\"").contains("must be closed sets")
    );
    assert!(rejected("name = \"bakers.oven\"", "name = \"bakers.new\"").contains("cannot be named new"));
    assert!(
        rejected("{town}:bakers:oven", "towns:bakers:oven")
            .contains("different identifiers before its owner")
    );
}

proptest! {
    #![proptest_config(effort::property(2000))]

    #[test]
    fn parse_never_panics(text in any::<String>()) {
        let _ = Catalog::parse("x", &text);
    }

    #[test]
    fn corrupt_catalogs_yield_an_error_with_a_valid_position(
        at in any::<prop::sample::Index>(),
        length in 0usize..40,
        insert in prop_oneof![any::<String>(), "[\\[\\]{}\":*%=.,a-z0-9 \n]{0,12}"],
    ) {
        let start = at.index(VALID.len());
        let end = (start + length).min(VALID.len());
        let corrupt = format!("{}{insert}{}", &VALID[..start], &VALID[end..]);
        if let Err(error) = Catalog::parse("shop.toml", &corrupt) {
            let line = corrupt.split('\n').nth(error.line - 1).expect("the line exists");
            prop_assert!(error.column <= line.chars().count() + 1, "{}", error);
            prop_assert!(!error.message.is_empty() && !error.message.contains('\n'));
        }
    }
}
