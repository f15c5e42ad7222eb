//! Integration tests of locks on Redis with several servers: queue order, deadlocks, stored keys, outages and injected
//! faults; and of the keyspace tools on a live Redis.

mod deadlocks;
mod fault_injection;
mod key_catalog;
mod key_inspector;
mod key_tools;
mod multi_server;
mod projections;
mod redis_outage;
mod servers;
