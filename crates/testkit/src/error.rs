//! Why a server could not be started or reached, with what to do about it or what was last seen.

/// Why a server could not be started or reached.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program is not installed.
    #[error("{program} is not installed: run `make deps`, or install {package} with your package manager")]
    Missing {
        /// What was looked for.
        program: String,
        /// Debian's package.
        package: &'static str,
    },
    /// Something of the operating system failed.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The server ended or did not get ready.
    #[error("{server} {what}; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        server: String,
        /// What happened instead.
        what: &'static str,
        /// Last lines of its log.
        log: String,
    },
    /// A running server refused a command.
    #[error("{doing}: {source}")]
    Redis {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: redis::RedisError,
    },
    /// A running server never reached the wanted state.
    #[error("waited too long until {what}; last seen: {seen}")]
    TimedOut {
        /// The wanted state.
        what: String,
        /// The last observation.
        seen: String,
    },
}

impl StartError {
    pub(crate) fn system(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }

    pub(crate) fn redis(doing: impl Into<String>) -> impl FnOnce(redis::RedisError) -> Self {
        let doing = doing.into();
        move |source| Self::Redis { doing, source }
    }
}
