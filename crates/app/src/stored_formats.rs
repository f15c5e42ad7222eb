//! What use cases store besides the documents of `store`: outcomes of requests with an idempotency key, checkpoints, and changes that
//! wait for a second administrator. A build that reads or writes them differently fails here.

use std::path::Path;

use ade_testkit::every_variant;
use ade_testkit::formats::{RoundTrip, assert_formats, round_trip};

use crate::Outcome;
use crate::accounts::UserProposal;
use crate::agents::RightsProposal;
use crate::audit::Checkpoint;

#[test]
fn stored_formats_do_not_change() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/stored_formats.json");
    let formats: [(&str, RoundTrip); 4] = [
        every_variant!(Outcome {
            Task,
            Claim,
            Approval,
            Batch,
            Restored,
            Done,
            Comment,
            User,
            Invitation,
            Token,
            Policy,
            Delegation,
            Resource,
            Setting,
            Feature,
            Webhook,
            Delivery,
            InboundHook,
            Change,
            AwaitsConfirmation
        }),
        ("checkpoint", round_trip::<Checkpoint>),
        ("rights_proposal", round_trip::<RightsProposal>),
        ("user_proposal", round_trip::<UserProposal>),
    ];
    assert_formats(&file, &formats, &[]).expect("unchanged");
}
