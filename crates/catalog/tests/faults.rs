//! A wrong catalog gives one sentence with its place, and never a panic.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use ade_catalog::Catalog;
use proptest::prelude::*;

const GOOD: &str = include_str!("fixtures/shop.toml");

/// The fault after replacing `from` by `to`, with the text at the place it points to.
fn fault(from: &str, to: &str) -> (String, String) {
    assert!(GOOD.contains(from), "the fixture has no {from:?}");
    let source = GOOD.replacen(from, to, 1);
    let error = Catalog::parse("shop.toml", &source).expect_err("refused");
    let line: String =
        source.lines().nth(error.line - 1).unwrap_or_default().chars().skip(error.column - 1).collect();
    assert_eq!(error.to_string(), format!("shop.toml:{}:{}: {}", error.line, error.column, error.message));
    assert!(!error.message.contains('\n'), "{error}");
    (error.message, line)
}

#[test]
fn every_fault_is_named_and_placed() {
    // What is broken, how, what the sentence says, and what stands at the place it names.
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
            "a ttl has one rule",
            "{ exact",
        ),
        (
            "ttl = { exact = \"15s\" }",
            "ttl = { exact = \"15s\", plus = \"1s\" }",
            "plus goes with given",
            "{ exact",
        ),
        (
            "ttl = { exact = \"15s\" }",
            "ttl = { exact = \"15s\", maxlen = 5 }",
            "maxlen bounds streams only",
            "{ exact",
        ),
        (
            "[\"10m\", \"15m\"]",
            "[\"15m\", \"10m\"]",
            "the range ends (10m) before it begins (15m)",
            "{ range",
        ),
        ("at_most = \"2h\"", "at_most = \"2m\"", "30m is beyond at_most (2m)", "{ renewable"),
        (
            "like = \"cart.items\"",
            "like = \"cart.itms\"",
            "names no key of this catalog; did you mean cart.items?",
            "{ like",
        ),
        ("like = \"cart.items\"", "like = \"cart.state\"", "borrows its ttl itself", "{ like"),
        ("shop:cart:{cart_id}:items", "shop:cart:{card_id}:items", "did you mean {cart_id}?", "{card_id}"),
        ("shop:cart:{cart_id}:items", "shop:cart:{zzz}:items", "add [[id]] name = \"zzz\"", "{zzz}"),
        ("shop:cart:{cart_id}:items", "shop:cart:{cart_id}{type}", "cannot be told apart", "shop:cart"),
        ("shop:cart:{cart_id}:items", "shop:cart::{cart_id}", "a segment is empty", "shop:cart"),
        ("shop:cart:{cart_id}:items", "shop:cart*:{cart_id}", "'*' cannot stand in a pattern", "*:"),
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
        ("name = \"eMail\"", "name = \"e-mail\"", "is not a name", "\"e-mail\""),
        ("name = \"search\"", "name = \"Type\"", "declared already (as type)", "\"Type\""),
        ("example = \"c-17\"", "example = \"\"", "the example is no cart_id", "\"\""),
        ("example = \"c-17\"\n", "\n", "needs an example", "\"cart_id\""),
        ("max_bytes = 50", "max_bytes = 40", "must leave room for a hash", "40"),
        ("max_bytes = 50", "max_bytes = 190", "must stay below 180", "\"shop:cart:index"),
        ("\"very:loud\"", "\"very loud\"", "cannot be a member", "\"very loud\""),
        ("\"very:loud\"", "\"INFO\"", "in the set already", "\"INFO\""),
        ("purpose = \"answers to searches\"", "purpose = \" \"", "needs an owner and a purpose", "\" \""),
        ("value = \"array of goods\"\n", "", "a string needs its value explained", "\"cache.search\""),
        ("score = \"Unix seconds\"\n", "", "a zset needs its score explained", "\"cart.index\""),
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
        ("separator = \".\"", "separator = \"-\"", "a separator is one of", "\"-\""),
        ("pattern = \"shop:cart:*\"", "pattern = \"shop:cart\"", "ends in \":*\"", "\"shop:cart\""),
        (
            "ttl = { like = \"cart.items\" }",
            "ttl = \"none\"",
            "keys of the family carts always expire",
            "\"cart.state\"",
        ),
        (
            "shop:cart:index:{type}",
            "shop:cart:{type}:items",
            "could build the same key",
            "\"shop:cart:{type}",
        ),
        ("pattern = \"shop:mail\"", "pattern = \"shop:audit\"", "could build the same key", "\"shop:audit\""),
        ("name = \"search\"", "name = \"self\"", "is not a name", "\"self\""),
        ("name = \"search\"", "name = \"e_mail\"", "declared already (as eMail)", "\"e_mail\""),
        ("name = \"cart.state\"", "name = \"cart.super\"", "write group.name", "\"cart.super\""),
        ("\"very:loud\"", "\"N24h\"", "in the set already, or cannot be told from \"N24h\"", "\"24h\""),
        ("\"billing\"", "\"fraud_check\"", "cannot be told from \"fraud_check\"", "\"fraud-check\""),
        ("\"billing\"", "\"bill ing\"", "is no name of a consumer group", "\"bill ing\""),
        ("\"billing\"", "\"\"", "is no name of a consumer group", "\"\""),
        ("shop:{cart:{cart_id}}:items", "shop:carts:{cart_id}", "needs a hash tag", "\"shop:carts"),
        ("given = \"the campaign's length\"", "given = \" \"", "needs to say what gives the ttl", "{ given"),
        ("maxlen = 1000", "maxlen = 0", "would keep nothing", "{ maxlen"),
        ("default = \"1h\"", "exact = \"1h\"", "at_most goes with renewable or default", "{ exact"),
        ("default = \"1h\"", "default = \"2d\"", "2d is beyond at_most (1d)", "{ default"),
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
            "the group needs the identifiers of its stream",
            "\"shop:audit:{cart_id}\"",
        ),
        ("\"very:loud\"", "\"-\"", "with a letter or digit", "\"-\""),
        ("name = \"search\"", "name = \"Crate\"", "is not a name", "\"Crate\""),
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
            "could build the same key",
            "\"shop:draft:{eMail}\"",
        ),
        ("shop:mail:{eMail}:{level}", "shop:mail:{eMail}:{eMail}", "{eMail} stands twice", "\"shop:mail"),
        ("max_bytes = 50", "max_bytes = 9223372036854775807", "must stay below 180", "\"shop:cart:index"),
    ];
    for (from, to, sentence, place) in cases {
        let (message, at) = fault(from, to);
        assert!(message.contains(sentence), "{to:?}: {message:?} does not say {sentence:?}");
        assert!(at.starts_with(place), "{to:?}: points at {at:?}, not at {place:?} ({message})");
    }
}

#[test]
fn tags_of_one_shape_take_the_same_identifiers() {
    let index = "pattern = \"shop:cart:index:{type}\"";
    let (message, at) = fault(index, &format!("{index}\ncluster = \"shop:cart:index:{{cart:{{type}}}}\""));
    assert!(message.contains("is filled with cart_id in cart.items"), "{message}");
    assert!(at.starts_with("\"shop:cart:index:{cart:"), "{at}");
}

#[test]
fn keys_that_separate_differently_are_compared_too() {
    // `news.…` separates with dots; an identifier between colons may hold one.
    let key = |pattern: &str, separator: &str| {
        format!(
            "{GOOD}\n[[key]]\nname = \"x.y\"\npattern = \"{pattern}\"\nseparator = \"{separator}\"\ntype = \"string\"\n\
             ttl = \"none\"\nowner = \"x\"\npurpose = \"x\"\nvalue = \"x\"\n"
        )
    };
    let load = |source: &str| Catalog::parse("shop.toml", source).map_err(|error| error.message);
    load(&key("shop:cart.{search}", ".")).expect("nothing else begins with shop:cart and a dot");
    load(&key("shop:cache:{eMail}.x", ".")).expect("a hashed search has no dot");
    let clash = load(&key("shop:cart:index:{eMail}.x", ".")).expect_err("a type may end in .x");
    assert!(clash.contains("x.y and cart.index could build the same key"), "{clash}");
}

#[test]
fn one_entry_cannot_build_a_key_in_two_ways() {
    // p with q:r is spelled like p:q with r.
    let sets = "name = \"level\"\nabout = \"x\"\none_of = [\"p\", \"p:q\"]\n\n[[id]]\nname = \"other\"\nabout = \"x\"\none_of = [\"q:r\", \"r\"]\n\n[[id]]\nname = \"unheard\"";
    let source = GOOD
        .replace("name = \"level\"", sets)
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:x:{level}:{other}\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("refused");
    assert!(error.message.contains("one key from two choices"), "{error}");
}

#[test]
fn a_family_binds_every_member_of_a_closed_set() {
    let source = GOOD
        .replace("pattern = \"shop:cart:*\"", "pattern = \"shop:mail:24h:*\"")
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:mail:{level}:all\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("refused");
    assert!(error.message.contains("mail.match must have a ttl"), "{error}");
}

#[test]
fn a_family_binds_what_an_identifier_could_be() {
    let source = GOOD
        .replace("pattern = \"shop:cart:*\"", "pattern = \"shop:special:*\"")
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:{type}:all\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("a type may be special");
    assert!(error.message.contains("mail.match must have a ttl"), "{error}");
}

#[test]
fn texts_are_made_harmless() {
    let source = GOOD
        .replace("purpose = \"what lies in a cart\"", "purpose = \"what lies\\n\\u001b[31m in a cart\"")
        .replace("owner = \"search\"", "owner = \"sea\\u202erch\"")
        .replace("name = \"sku\"", "name = \"s\\u0007ku\"");
    let catalog = Catalog::parse("shop.toml", &source).expect("valid");
    let shown = format!("{:?}", catalog.rows()) + &ade_catalog::reference::markdown([&catalog]);
    assert!(
        shown.contains("what lies [31m in a cart") && shown.contains("sea rch") && shown.contains("`s ku`")
    );
    assert!(!shown.contains(['\u{1b}', '\u{202e}', '\u{7}']));
}

#[test]
fn a_former_spelling_is_found_only_where_no_present_one_is() {
    let catalog = Catalog::parse("shop.toml", GOOD).expect("valid");
    let spelling = |key: &str| catalog.find(key).map(|found| found.spelling);
    assert_eq!(spelling("cart:17"), Some(ade_catalog::find::Spelling::Former));
    assert_eq!(spelling("shop:cart:17:items"), Some(ade_catalog::find::Spelling::Plain));
    let families = |key: &str| catalog.families_of(key).count();
    assert_eq!(
        [families("shop:cart:17:items"), families("shop:{cart:17}:items"), families("shop:mail")],
        [1, 1, 0]
    );
}

#[test]
fn a_long_text_is_not_repeated_at_length() {
    let long = "z".repeat(60_000);
    let source = GOOD.replace("shop:cart:{cart_id}:items", &format!("shop:cart:{{{long}}}:items"));
    let error = Catalog::parse("shop.toml", &source).expect_err("refused");
    assert!(error.message.len() < 1000, "{} bytes", error.message.len());
}

#[test]
fn a_channel_may_be_named_like_a_key() {
    let source = GOOD.replace(
        "pattern = \"news.{cart_id}.{level}\"\nseparator = \".\"",
        "pattern = \"shop:cart:{cart_id}:items\"",
    );
    Catalog::parse("shop.toml", &source).expect("they never meet");
}

#[test]
fn too_many_combinations_are_refused() {
    let members: Vec<String> = (0..100).map(|number| format!("\"m{number}\"")).collect();
    let source = GOOD
        .replace("name = \"type\"\n", &format!("name = \"a\"\nabout = \"a\"\none_of = [{0}]\n\n[[id]]\nname = \"b\"\nabout = \"b\"\none_of = [{0}]\n\n[[id]]\nname = \"type\"\n", members.join(", ")))
        .replace("pattern = \"shop:mail\"", "pattern = \"shop:mail:{a}:{b}\"");
    let error = Catalog::parse("shop.toml", &source).expect_err("refused");
    assert!(error.message.contains("more than 4096 spellings"), "{error}");

    let many: Vec<String> = (0..40_000).map(|number| format!("\"m{number}\"")).collect();
    let source = GOOD.replace("\"info\", ", &format!("{}, ", many.join(", ")));
    let error = Catalog::parse("shop.toml", &source).expect_err("refused");
    assert!(error.message.contains("are too many: list at most 1000"), "{error}");
}

#[test]
fn the_owner_s_segment_is_checked() {
    let source = include_str!("fixtures/guild.toml");
    let refused = |from: &str, to: &str| {
        Catalog::parse("guild.toml", &source.replacen(from, to, 1)).expect_err("refused").message
    };
    assert!(refused("owner = \"bakers\"", "owner = \"smiths\"").contains("must be its owner, \"smiths\""));
    assert!(refused("{town}:bakers:oven", "{town}:smiths:oven").contains("must be its owner, \"bakers\""));
    assert!(refused("name = \"bakers.oven\"", "name = \"ovens.oven\"").contains("name it \"bakers.oven\""));
    assert!(refused("owner_segment = 2", "owner_segment = 0").contains("counts from 1"));
    let twin = source.replace("bakers", "smi_ths");
    assert!(Catalog::parse("guild.toml", &twin).is_ok(), "smi_ths is SmiThs, not Smiths");
    let twin = source.replace("smiths", "x1_2").replace("bakers", "x12");
    let error = Catalog::parse("guild.toml", &twin).expect_err("both are X12");
    assert!(error.message.contains("cannot be told from"), "{error}");
    assert!(
        refused("one_of = [\"north\", \"south\"]", "example = \"north\"").contains("must be closed sets")
    );
    assert!(refused("name = \"bakers.oven\"", "name = \"bakers.new\"").contains("cannot be called new"));
    assert!(
        refused("{town}:bakers:oven", "towns:bakers:oven").contains("other identifiers before its owner")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_input_makes_it_panic(text in any::<String>()) {
        let _ = Catalog::parse("x", &text);
    }

    #[test]
    fn no_damage_makes_it_panic_or_lose_its_place(
        at in any::<prop::sample::Index>(),
        length in 0usize..40,
        put in prop_oneof![any::<String>(), "[\\[\\]{}\":*%=.,a-z0-9 \n]{0,12}"],
    ) {
        let start = at.index(GOOD.len());
        let end = (start + length).min(GOOD.len());
        let damaged = format!("{}{put}{}", &GOOD[..start], &GOOD[end..]);
        if let Err(error) = Catalog::parse("shop.toml", &damaged) {
            let line = damaged.split('\n').nth(error.line - 1).expect("the line exists");
            prop_assert!(error.column <= line.chars().count() + 1, "{}", error);
            prop_assert!(!error.message.is_empty() && !error.message.contains('\n'));
        }
    }
}
