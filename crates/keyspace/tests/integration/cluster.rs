//! Computed slots match a real cluster, and one script there can use all keys of an entity.

use std::collections::BTreeMap;

use ade_catalog::slot::slot_of;
use ade_testkit::{Redis, RedisCluster, effort};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::{any_choice, shipped};

/// Runs a script that uses all keys. Returns the error code if the cluster rejects it.
fn touch_all(nodes: &[Redis], keys: &[&str]) -> Result<usize, String> {
    let mut rejection = String::new();
    for node in nodes.iter().take(3) {
        let mut connection = node.connect().map_err(|error| error.to_string())?;
        let mut script = redis::cmd("EVAL");
        script
            .arg("local n = 0 for _, k in ipairs(KEYS) do n = n + 1 - redis.call('EXISTS', k) end return n");
        match script.arg(keys.len()).arg(keys).query::<usize>(&mut connection) {
            Ok(touched) => return Ok(touched),
            Err(error) if error.code() == Some("MOVED") => {}
            Err(error) => rejection = error.code().unwrap_or_default().to_owned(),
        }
    }
    Err(rejection)
}

#[test]
fn slots_match_a_real_cluster() {
    let cluster = RedisCluster::start().expect("starts");
    let mut connection = cluster.nodes[0].connect().expect("connects");
    let mut runner = TestRunner::new(effort::property(24));
    let cases = shipped().prop_flat_map(|it| (Just(it), any_choice(it.0)));
    let connection = std::cell::RefCell::new(&mut connection);
    runner
        .run(&cases, |((catalog, build), choice)| {
            let mut entities: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (name, spelled) in build(&|kind| choice[kind].clone()).expect("no empty identifier") {
                for key in &spelled {
                    let actual: u16 = redis::cmd("CLUSTER")
                        .arg("KEYSLOT")
                        .arg(key)
                        .query(&mut **connection.borrow_mut())
                        .expect("a slot");
                    prop_assert_eq!(slot_of(key.as_bytes()), actual, "{}", key);
                }
                if let Some((tag, _)) = catalog.entry(name).expect("known").cluster.tag() {
                    entities.entry(tag).or_default().push(spelled[1].clone());
                }
            }
            for (tag, keys) in entities {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                prop_assert_eq!(touch_all(&cluster.nodes, &keys), Ok(keys.len()), "entity {}", tag);
            }
            Ok(())
        })
        .expect("slots match");
}

#[test]
fn cluster_rejects_the_script_without_hash_tags() {
    // If the plain layout were accepted too, the test above would prove nothing.
    let cluster = RedisCluster::start().expect("starts");
    let catalog = ade_keyspace::catalogs()
        .iter()
        .find(|catalog| catalog.entries.iter().any(|entry| entry.cluster.tag().is_some()));
    let catalog = catalog.expect("some catalog has tags");
    let plain: Vec<String> = catalog
        .entries
        .iter()
        .filter(|entry| entry.cluster.tag().is_some())
        .map(|entry| catalog.example(entry, ade_catalog::Layout::Plain))
        .collect();
    let keys: Vec<&str> = plain.iter().map(String::as_str).collect();
    assert_eq!(touch_all(&cluster.nodes, &keys), Err("CROSSSLOT".to_owned()));
}
