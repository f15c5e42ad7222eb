//! Degradation with real servers: Redis or PostgreSQL is gone, disks are full, peers stop. What does not need the missing part goes on,
//! nothing that was acknowledged is lost, and everything recovers by itself.

mod campaign;
mod full_disk;
mod load;
mod postgres_gone;
mod redis_gone;
