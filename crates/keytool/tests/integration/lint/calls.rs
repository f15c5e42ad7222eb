//! Which calls are calls of Redis, and which texts are keys.

use super::brief;

#[test]
fn methods_with_common_names_need_a_client() {
    let python = |body: &str| brief("a.py", &format!("import redis\nimport requests\n{body}\n"));
    for silent in [
        "headers = {}\nheaders.get('a:b')",
        "requests.get('http://a:80/b')",
        "config.get('redis:url')",
        "client = requests.Session()\nclient.get('/a:b')",
        "cache.get('plain')",
        "items.append('a:b')",
        "redis_options.get('a:b')",
    ] {
        assert_eq!(python(silent), Vec::<String>::new(), "{silent}");
    }
    for found in
        ["r = redis.Redis()\nr.get('b')", "self.cache.get('a:b')", "app.redis.get('b')", "x.hget('a', 'b')"]
    {
        assert_eq!(python(found).len(), 1, "{found}");
    }
    assert!(brief("a.py", "cache.get('a:b')\n").is_empty(), "nothing in the file is about Redis");
}

#[test]
fn scripts_and_command_lines_in_texts_are_read() {
    let found = brief(
        "a.rs",
        r#"
use redis::Script;
fn a(con: &mut redis::Connection, id: &str) {
    let script = Script::new(r"
        return redis.call('GET', 'ade:nope')
    ");
    let _: () = script.key("ade:lock:token").key("ade:lock:names").invoke(con);
    std::process::Command::new("sh").arg("-c").arg(format!("redis-cli GET ade:none:{id}"));
}
#[cfg(test)]
mod tests {
    const SCRIPT: &str = "return redis.call('GET', 'ade:lock:token')";
}
"#,
    );
    let expected = [
        "5 unknown-key ade:nope",
        "7 inline-key ade:lock:names",
        "7 inline-key ade:lock:token",
        "7 cross-slot ade:lock:names",
        "8 unknown-key ade:none:{id}",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_set_needs_its_ttl_in_the_same_call() {
    let lost = |path: &str, source: &str| {
        brief(path, source).iter().filter(|found| found.contains("ttl-lost")).count()
    };
    for (path, source, count) in [
        ("a.py", "import redis\nr.set('ade:session:a', 1)\nr.expire('ade:session:a', 5)", 1),
        ("a.py", "import redis\nr.set('ade:session:a', 1, ex=None)", 1),
        ("a.py", "import redis\nr.set('ade:session:a', 1, **options)", 0),
        ("a.py", "import redis\nr.getset('ade:session:a', 1)", 1),
        ("a.py", "import redis\nr.set('ade:agent:index', 1)", 0),
        ("a.ts", "redis.set('ade:session:a', 1, 'KEEPTTL')", 0),
        ("a.ts", "redis.set('ade:session:a', 1, { expiration: { type: 'EX', value: 5 } })", 0),
        ("a.ts", "redis.set('ade:session:a', 1, options)", 0),
        ("a.rs", "fn a() { redis.set(\"ade:session:a\", 1, None, None, false); }", 1),
        ("a.rs", "fn a() { redis.set(\"ade:session:a\", 1, Some(Expiration::EX(5)), None, false); }", 0),
        ("a.go", "package a\nfunc a() { rdb.Set(ctx, \"ade:session:a\", 1, 0) }", 1),
        ("a.go", "package a\nfunc a() { rdb.Set(ctx, \"ade:session:a\", 1, ttl) }", 0),
        ("a.sh", "\nredis-cli set ade:session:a 1 exat 5", 0),
        ("a.sh", "\nredis-cli set ade:session:a 1 get", 1),
    ] {
        assert_eq!(lost(path, source), count, "{source}");
    }
}

#[test]
fn slots_are_compared_in_the_cluster_layout() {
    let crossed =
        |source: &str| brief("a.js", source).iter().filter(|found| found.contains("cross-slot")).count();
    for (source, count) in [
        ("redis.del(`ade:task:${id}:state`, `ade:task:${id}:data`)", 0),
        ("redis.del(`ade:task:${id}:state`, `ade:approval:index:task:${id}`)", 0),
        ("redis.del(`ade:task:${id}:state`, `ade:task:${other}:state`)", 0),
        ("redis.del(`ade:task:1:state`, `ade:task:2:state`)", 1),
        ("redis.del(`ade:task:${id}:state`, `ade:agent:${id}:profile`)", 1),
        ("redis.del('{a}:1', '{a}:2')", 0),
        ("redis.del('{a}:1', '{b}:2')", 1),
        ("redis.del(`user:${id}:a`, `user:${id}:b`)", 1),
        ("redis.del(first, second)", 0),
        ("redis.subscribe('ade:events:numbered', 'news')", 0),
        ("const m = redis.multi(); m.get('ade:lock:token'); m.get('ade:lock:names')", 1),
        ("redis.get('ade:lock:token'); redis.get('ade:lock:names')", 0),
    ] {
        assert_eq!(crossed(source), count, "{source}");
    }
}

#[test]
fn members_of_closed_sets_and_former_spellings_are_known() {
    let found = brief(
        "a.rb.py",
        "import redis
redis.get('ade:task:index:state:DRAFT')
redis.get('ade:task:index:state:draft')
redis.get('lock:registry')
redis.keys('ade:*')
redis.keys('ade:task:?:stat*')
redis.keys('ade:x*')
PREFIX = 'ade:lock:'
WRONG_PREFIX = 'ade:lokc:'
",
    );
    let expected = [
        "2 inline-key ade:task:index:state:DRAFT",
        "3 unknown-key ade:task:index:state:draft",
        "4 inline-key lock:registry",
        "7 unknown-key ade:x*",
        "9 unknown-key ade:lokc:",
    ];
    assert_eq!(found, expected);
}
