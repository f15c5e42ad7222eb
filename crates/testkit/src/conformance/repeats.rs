//! Requests that are repeated at a lock: the same answer while they live, and none of them comes back once over.

use ade_domain::lock::{Acquire, End, LockCommand, Mode, RequestKey};

use super::Opener;
use super::play::{Play, hint, with};

use Mode::{Exclusive, Shared};

scenarios!(
    a_repeated_request_stands_where_it_stood,
    a_cancelled_request_does_not_come_back,
    a_cancel_that_came_first_wins,
    a_cancel_gives_back_what_the_request_won,
    a_cancel_of_a_request_that_joined_frees_nothing,
    a_released_request_does_not_come_back,
    what_is_over_is_forgotten_after_its_time,
    a_holder_waits_once_and_its_newer_request_takes_the_place,
    a_request_without_an_id_leaves_no_trace,
);

async fn a_repeated_request_stands_where_it_stood(opener: Opener) {
    let play = Play::usual(&opener).await;
    let grant = play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    let waiting = play.acquire("p", play.wish("cem", "1", Exclusive)).await;
    play.pass(2).await;
    assert_eq!(play.grant("p", play.wish("ann", "1", Exclusive)).await, grant);
    assert_eq!(play.acquire("p", play.wish("cem", "1", Exclusive)).await, waiting);
    assert_eq!(play.queue("p").await, ["ben", "cem"]);
}

async fn a_cancelled_request_does_not_come_back(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    play.position("p", play.wish("cem", "1", Exclusive)).await;
    let watch = play.port.watch(play.key("ben", "1"));
    play.cancel("p", "ben", "1", End::Cancelled).await;
    hint(&watch).await;
    assert_eq!(play.queue("p").await, ["cem"]);
    assert_eq!(play.over("p", play.wish("ben", "1", Exclusive)).await, End::Cancelled);
    assert_eq!(play.position("p", play.wish("ben", "2", Exclusive)).await, 2, "another one may");
}

async fn a_cancel_that_came_first_wins(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.cancel("p", "ben", "1", End::Cancelled).await;
    assert_eq!(play.over("p", play.wish("ben", "1", Exclusive)).await, End::Cancelled);
    // Refusals and time-outs are not remembered, so that the request may be tried again.
    for (request, why) in [("2", End::Refused), ("3", End::TimedOut)] {
        play.cancel("p", "ben", request, why).await;
        play.grant("p", play.wish("ben", request, Exclusive)).await;
    }
}

async fn a_cancel_gives_back_what_the_request_won(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    play.cancel("p", "ann", "1", End::Cancelled).await;
    assert_eq!(play.holders("p").await, ["ben"]);
    assert_eq!(play.over("p", play.wish("ann", "1", Exclusive)).await, End::Cancelled);
}

async fn a_cancel_of_a_request_that_joined_frees_nothing(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.grant("p", play.wish("ann", "2", Exclusive)).await;
    play.cancel("p", "ann", "2", End::Cancelled).await;
    assert_eq!(play.holders("p").await, ["ann"], "the grant is the first request's");
    assert_eq!(play.over("p", play.wish("ann", "2", Exclusive)).await, End::Cancelled);
}

async fn a_released_request_does_not_come_back(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.release("p", "ann").await;
    assert_eq!(play.over("p", play.wish("ann", "1", Exclusive)).await, End::Released);
    play.grant("q", play.wish("ann", "1", Exclusive)).await;
    assert!(play.holders("p").await.is_empty());
}

async fn what_is_over_is_forgotten_after_its_time(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.repeat_ms = 2_000)).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.release("p", "ann").await;
    assert_eq!(play.over("p", play.wish("ann", "1", Exclusive)).await, End::Released);
    play.pass(2_100).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
}

async fn a_holder_waits_once_and_its_newer_request_takes_the_place(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.position("p", play.wish("ben", "1", Exclusive)).await;
    play.position("p", play.wish("cem", "1", Exclusive)).await;
    let watch = play.port.watch(play.key("ben", "1"));
    assert_eq!(
        play.position("p", play.wish("ben", "2", Exclusive)).await,
        1,
        "the same mode keeps the place"
    );
    hint(&watch).await;
    assert_eq!(play.over("p", play.wish("ben", "1", Exclusive)).await, End::Superseded);
    assert_eq!(play.position("p", play.wish("ben", "3", Shared)).await, 2, "another mode starts anew");
    assert_eq!(play.over("p", play.wish("ben", "2", Exclusive)).await, End::Superseded);
    play.refused("p", play.at_once("ben", "4", Shared)).await;
    assert_eq!(play.queue("p").await, ["cem", "ben"], "who does not wait takes no place");
}

async fn a_request_without_an_id_leaves_no_trace(opener: Opener) {
    let play = Play::usual(&opener).await;
    let request = RequestKey::once(u128::MAX - 7);
    let wish = Acquire { request, remember: false, ..play.wish("ann", "", Exclusive) };
    let token = play.grant("p", wish.clone()).await.token;
    play.send("p", LockCommand::Release { holder: wish.holder.clone(), token }).await;
    play.grant("p", wish).await;
}
