//! Wire types and the typed HTTP client.
