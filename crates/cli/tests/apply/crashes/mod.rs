//! What tests of crashes are made of: a site on which tasks are carried out, what is proposed there and how it must have ended,
//! and the moments at which something happens to whoever is at it.

pub(crate) mod jobs;
pub(crate) mod moments;
pub(crate) mod site;
