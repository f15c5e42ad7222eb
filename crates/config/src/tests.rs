//! Tests of layers, origins and errors of the configuration.

use super::*;

fn layers(
    file: &str,
    variables: &[(&str, &str)],
    flags: &[(&'static str, &'static str, &str)],
) -> ConfigLayers {
    ConfigLayers {
        file: Some(("ade.toml".into(), file.to_owned())),
        variables: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        flags: flags.iter().map(|(name, flag, value)| (*name, *flag, (*value).to_owned())).collect(),
    }
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let file = "[server]\nlisten = \"127.0.0.1:1\"\ndata = \"f\"\n[lock]\nmax_queue = 7\n";
    let variables = [("ADE_SERVER_LISTEN", "127.0.0.1:2"), ("ADE_SERVER_DATA", "v"), ("PATH", "/bin")];
    let config = Config::load(&layers(file, &variables, &[("server.listen", "listen", "127.0.0.1:3")]))
        .expect("valid");
    assert_eq!(config.listen.port(), 3);
    assert_eq!(config.data, PathBuf::from("v"));
    assert_eq!(config.lock_limits.max_queue, 7);
    let origin = |name: &str| {
        config
            .effective_settings
            .iter()
            .find(|setting| setting.name == name)
            .map(|setting| setting.origin.to_string())
    };
    assert_eq!(origin("server.listen").as_deref(), Some("--listen"));
    assert_eq!(origin("server.data").as_deref(), Some("ADE_SERVER_DATA"));
    assert_eq!(origin("lock.max_queue").as_deref(), Some("ade.toml"));
    assert_eq!(origin("lock.max_wait_seconds").as_deref(), Some("default"));
}

#[test]
fn errors_name_the_setting_and_its_origin() {
    for (file, variables, expected) in [
        (
            "[lock]\nmax_que = 1\n",
            &[][..],
            "unknown setting lock.max_que in ade.toml; did you mean lock.max_queue?",
        ),
        (
            "[lok]\nmax_queue = 1\n",
            &[],
            "unknown setting lok.max_queue in ade.toml; did you mean lock.max_queue?",
        ),
        ("x = 1\n", &[], "unknown setting x in ade.toml"),
        (
            "[lock]\nmax_queue = \"many\"\n",
            &[],
            "lock.max_queue = \"many\" (from ade.toml): must be of type integer",
        ),
        (
            "[lock]\nmax_queue = -1\n",
            &[],
            "lock.max_queue = -1 (from ade.toml): must be between 0 and 100000",
        ),
        (
            "[lock]\nmax_wait_seconds = 9\n",
            &[],
            "lock.default_wait_seconds = 60 (from default): must not exceed lock.max_wait_seconds",
        ),
        (
            "[server]\nhosts = [1]\n",
            &[],
            "server.hosts = [1] (from ade.toml): invalid type: integer `1`, expected a string",
        ),
        (
            "",
            &[("ADE_LOCK_MAX_QUEU", "1")],
            "unknown setting ADE_LOCK_MAX_QUEU in ADE_LOCK_MAX_QUEU; did you mean ADE_LOCK_MAX_QUEUE?",
        ),
        (
            "",
            &[("ADE_LOG_FORMAT", "xml")],
            "log.format = \"xml\" (from ADE_LOG_FORMAT): must be text or json",
        ),
        (
            "[server]\ntrusted_proxies = [\"10.0.0.1\", \"10.0.0.0/33\"]\n",
            &[],
            "server.trusted_proxies = [\"10.0.0.1\", \"10.0.0.0/33\"] (from ade.toml): \"10.0.0.0/33\" is not a network such \
             as 10.0.0.0/8, nor an address",
        ),
        (
            "",
            &[("ADE_SERVER_ALLOW_PLAIN_HTTP", "true")],
            "server.allow_plain_http = true (from ADE_SERVER_ALLOW_PLAIN_HTTP): can only be set in the configuration file",
        ),
        (
            "",
            &[("ADE_SECURITY_BOOTSTRAP_DECIDES", "true")],
            "security.bootstrap_decides = true (from ADE_SECURITY_BOOTSTRAP_DECIDES): can only be set in the configuration file",
        ),
        (
            "",
            &[("ADE_SERVER_LISTEN", "here")],
            "server.listen = \"here\" (from ADE_SERVER_LISTEN): must be an address and a port, such as 127.0.0.1:8300",
        ),
    ] {
        let error = Config::load(&layers(file, variables, &[])).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
    let error = Config::load(&layers("[lock\n", &[], &[])).expect_err("syntax").to_string();
    assert!(error.starts_with("ade.toml: "), "{error}");
}

#[test]
fn default_file_contains_the_defaults() {
    let uncommented: String = Config::default_file()
        .lines()
        .filter(|line| !line.starts_with("# "))
        .map(|line| format!("{}\n", line.trim_start_matches('#')))
        .collect();
    let config = Config::load(&layers(&uncommented, &[], &[])).expect("valid");
    assert_eq!(config.lock_limits, LockLimits::default());
    assert_eq!(config.listen.port(), 8300);
}

#[test]
fn mail_server_is_encrypted_and_hides_its_password() {
    let load = |file: &str| Config::load(&layers(file, &[("MAIL_PASSWORD", "s3cret")], &[]));
    assert_eq!(load("[webhooks]\n").expect("valid").smtp, None);
    let file = "[webhooks.smtp]\nhost = \"mail.example.com\"\nfrom = \"ade@example.com\"\nuser = \"ade\"\n";
    let config = load(&format!("{file}password = \"env:MAIL_PASSWORD\"\n")).expect("valid");
    let smtp = config.smtp.expect("set");
    assert_eq!((smtp.port, smtp.encryption), (587, SmtpEncryption::StartTls));
    assert_eq!(smtp.credentials, Some(("ade".to_owned(), SecretText("s3cret".to_owned()))));
    let config = load(&format!("{file}password = \"s3cret\"\n")).expect("valid");
    assert!(!format!("{config:?}").contains("s3cret"));
    for (more, error) in [
        ("", "together with password"),
        ("password = \"env:OTHER\"\n", "OTHER is not set"),
        ("password = \"x\"\nencryption = \"none\"\n", "in the clear"),
        ("password = \"x\"\nencryption = \"ssl\"\n", "must be starttls, tls or none"),
        ("password = \"x\"\nport = 0\n", "between 1 and 65535"),
        ("password = \"x\"\nhots = \"a\"\n", "webhooks.smtp.host"),
    ] {
        let refused = load(&format!("{file}{more}")).expect_err(more).to_string();
        assert!(refused.contains(error), "{refused}");
    }
    let local = file.replace("mail.example.com", "127.0.0.1");
    load(&format!("{local}password = \"x\"\nencryption = \"none\"\n")).expect("valid");
    load(&format!("{file}password = \"x\"\nencryption = \"none\"\nallow_plaintext = true\n")).expect("valid");
    let injected = file.replace("ade@example.com", "ade@example.com\\r\\nBcc: a@b.test");
    load(&injected).expect_err("a header");
}

#[test]
fn secrets_of_commands_are_collected_and_redacted() {
    let file = "[executors.files.roots.app]\npath = \"env:ROOT\"\n[executors.command.templates.deploy]\n\
                argv = [\"deploy\", \"env:DEPLOY_KEY\"]\n";
    let variables = [("ROOT", "/srv/app"), ("DEPLOY_KEY", "k3y-s3cret")];
    let config = Config::load(&layers(file, &variables, &[])).expect("valid");
    assert_eq!(config.executors.command.templates["deploy"].argv, ["deploy", "k3y-s3cret"]);
    assert_eq!(config.executors.command_secrets.0, ["k3y-s3cret"], "file roots are no secrets");
    assert!(!format!("{:?}", config.executors.command_secrets).contains("k3y"));
}
