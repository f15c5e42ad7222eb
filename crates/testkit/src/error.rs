//! Why a test server could not be started or reached, with what to do next or the last observed state.

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{program} is not installed: run `make deps`, or install {package} with your package manager")]
    Missing {
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    #[error("cannot {doing}: {source}")]
    System { doing: String, source: std::io::Error },
    #[error("{server} {what}; last lines of its log:\n{log}")]
    NotReady { server: String, what: &'static str, log: String },
    #[error("cannot {doing}: {source}")]
    Redis { doing: String, source: redis::RedisError },
    #[error("timed out while waiting until {what}; last state: {seen}")]
    TimedOut { what: String, seen: String },
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
