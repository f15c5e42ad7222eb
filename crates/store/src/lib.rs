//! Ports and their backends.
