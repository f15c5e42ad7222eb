//! Tests of generated builders. [`ade_catalog::builders::generate`] writes `fixtures/*.rs` from `fixtures/*.toml`;
//! `generated.rs` checks that they are up to date.

use std::time::Duration;

use ade_catalog::key::{EveryKey, RawIds};
use ade_catalog::{Catalog, Layout, ident};

/// Generated from `fixtures/shop.toml`.
mod shop {
    #![expect(unreachable_pub, reason = "generated for a library")]
    include!("../fixtures/shop.rs");
}

/// Generated from `fixtures/guild.toml`.
mod guild {
    #![expect(unreachable_pub, reason = "generated for a library")]
    include!("../fixtures/guild.rs");
}

/// Generated from `fixtures/tricky.toml`. It must compile without warnings.
mod tricky {
    #![expect(unreachable_pub, reason = "generated for a library")]
    include!("../fixtures/tricky.rs");
}

/// Generated from `fixtures/bare.toml`.
mod bare {
    #![expect(unreachable_pub, reason = "generated for a library")]
    include!("../fixtures/bare.rs");
}

#[test]
fn builds_keys_in_both_layouts() {
    let cart = shop::ids::CartId::new("a:b").expect("not empty");
    let items = shop::cart::items(&cart);
    assert_eq!(items.entry(), "cart.items");
    assert_eq!(items.in_layout(Layout::Plain).as_str(), "shop:cart:a%3Ab:items");
    assert_eq!(items.in_layout(Layout::Cluster).as_str(), "shop:{cart:a%3Ab}:items");
    let state = shop::cart::state(&cart).in_layout(Layout::Cluster);
    assert_eq!(items.in_layout(Layout::Cluster).slot(), state.slot());
    assert_eq!(shop::mail::r#match().in_layout(Layout::Cluster).as_str(), "shop:mail");
}

#[test]
fn reserved_word_is_encoded_alike_in_all_keys() {
    // `index` is a literal sibling in `shop:cart:…` only, but hash tags must be equal in all keys.
    let cart = shop::ids::CartId::new("index").expect("not empty");
    assert_eq!(shop::cart::items(&cart).in_layout(Layout::Plain).as_str(), "shop:cart:%69ndex:items");
    let news = shop::mail::news(&cart, &shop::ids::Level::VeryLoud).in_layout(Layout::Plain);
    assert_eq!(news.as_str(), "news.%69ndex.very:loud");
    let dotted = shop::ids::CartId::new("a.b").expect("not empty");
    assert_eq!(
        shop::mail::news(&dotted, &shop::ids::Level::N24h).in_layout(Layout::Plain).as_str(),
        "news.a%2Eb.24h"
    );
}

#[test]
fn ttls_follow_the_catalog() {
    let seconds = Duration::from_secs;
    let cart = shop::ids::CartId::new("c").expect("not empty");
    assert_eq!(shop::cart::items(&cart).writable().ttl(), Some(seconds(1800)));
    assert_eq!(
        shop::cart::items(&cart).renewed_for(seconds(7200)).expect("allowed").ttl(),
        Some(seconds(7200))
    );
    shop::cart::items(&cart).renewed_for(seconds(7201)).expect_err("longer than at_most");
    shop::cart::items(&cart).renewed_for(Duration::ZERO).expect_err("zero");
    assert_eq!(shop::cart::state(&cart).writable().ttl(), Some(seconds(1800)), "as cart.items");

    let goods = shop::ids::Type::new("books").expect("not empty");
    let index = shop::cart::index(&goods);
    assert_eq!(index.writable_for(seconds(600)).expect("in range").ttl(), Some(seconds(600)));
    assert_eq!(index.writable_for(seconds(900)).expect("in range").ttl(), Some(seconds(900)));
    let error = index.writable_for(seconds(599)).expect_err("below");
    assert_eq!(error.to_string(), "a ttl of 599s is not allowed for cart.index: use 600s to 900s");
    index.writable_for(seconds(901)).expect_err("above");

    let search = shop::ids::Search::new("Red Shoes").expect("not empty");
    assert_eq!(shop::cache::search(&search).writable().ttl(), Some(seconds(15)));
    let mail = shop::ids::EMail::new("a@b.c").expect("not empty");
    let sent = shop::mail::sent(&mail, &shop::ids::Level::Quiet);
    assert_eq!(
        sent.writable_for(seconds(30)).expect("given").ttl(),
        Some(seconds(90)),
        "with the grace period"
    );
    assert_eq!(shop::audit::log().writable().ttl(), None, "bounded by MAXLEN");
    let draft = shop::mail::draft(&mail);
    assert_eq!(draft.writable().ttl(), Some(seconds(3600)), "by default");
    assert_eq!(draft.writable_for(seconds(86_400)).expect("allowed").ttl(), Some(seconds(86_400)));
    draft.writable_for(seconds(86_401)).expect_err("longer than at_most");
    let bounced = shop::mail::bounced(&mail);
    bounced.writable_for(seconds(119)).expect_err("below the minimum");
    let endless = bounced.writable_for(Duration::MAX).expect_err("would overflow in the server");
    assert!(endless.to_string().ends_with("use 120s to 3155760000s"), "{endless}");
    assert_eq!(bounced.writable_for(seconds(1_000_000)).expect("no bound").ttl(), Some(seconds(1_000_000)));
}

#[test]
fn hashed_kinds_show_a_slug_and_sensitive_kinds_nothing() {
    let search = shop::ids::Search::new("Red Shoes").expect("not empty");
    let key = shop::cache::search(&search).in_layout(Layout::Plain);
    assert_eq!(key.as_str(), format!("shop:cache:red-shoes~{}", ident::digest("Red Shoes")));
    let mail = shop::ids::EMail::new("a@b.c").expect("not empty");
    let key = shop::mail::sent(&mail, &shop::ids::Level::Info).in_layout(Layout::Plain);
    assert_eq!(key.as_str(), format!("shop:mail:~{}:info", ident::digest("a@b.c")));
}

#[test]
fn closed_set_accepts_only_its_members() {
    assert_eq!(shop::ids::Level::new("very:loud"), Ok(shop::ids::Level::VeryLoud));
    let error = shop::ids::Level::new("loud").expect_err("not a member");
    assert_eq!(error.to_string(), "\"loud\" is not a valid level: use one of info, very:loud, 24h, QUIET");
    let groups = shop::audit::Readers::all().iter().map(|group| group.as_written());
    assert_eq!(groups.collect::<Vec<_>>(), ["billing", "fraud-check"]);
    assert_eq!(shop::audit::Readers::new("fraud-check"), Ok(shop::audit::Readers::FraudCheck));
    assert_eq!(tricky::core::Result::new("self").map(|group| group.as_written()), Ok("self"));
}

#[test]
fn owner_type_builds_keys_of_the_owner() {
    let ann = guild::ids::Member::new("Ann").expect("not empty");
    let oath = guild::Smiths::new(guild::ids::Town::North).oath(&ann);
    assert_eq!(
        oath.in_layout(Layout::Plain).as_str(),
        format!("north:smiths:oath:ann~{}", ident::digest("Ann"))
    );
    let oven = guild::Bakers::new(guild::ids::Town::South).oven();
    assert_eq!(oven.in_layout(Layout::Plain).as_str(), "south:bakers:oven");
}

#[test]
fn generated_list_calls_every_builder_once() {
    for (source, build) in [
        (include_str!("../fixtures/shop.toml"), shop::__every_builder as fn(RawIds<'_>) -> EveryKey),
        (include_str!("../fixtures/guild.toml"), guild::__every_builder),
        (include_str!("../fixtures/tricky.toml"), tricky::__every_builder),
        (include_str!("../fixtures/bare.toml"), bare::__every_builder),
    ] {
        let catalog = Catalog::parse("fixture", source).expect("valid");
        let raw =
            |name: &str| catalog.ids.iter().find(|kind| kind.name == name).expect("known").example.clone();
        let built = build(&raw).expect("examples are valid");
        let expected = catalog.entries.iter().filter(|entry| entry.type_name() != "group");
        let expected: Vec<(&str, [String; 2])> = expected
            .map(|entry| {
                (
                    entry.name.as_str(),
                    [Layout::Plain, Layout::Cluster].map(|layout| catalog.example(entry, layout)),
                )
            })
            .collect();
        assert_eq!(built, expected);
    }
}
