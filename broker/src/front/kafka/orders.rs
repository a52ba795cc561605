//! What an admin client orders and only the metadata store can take: within the time that the client gives it, and refused in the code after
//! which Kafka's clients ask again.

use crate::api::ApiError;
use millpond_log::ErrorCode;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

/// The orders of one request, carried out one after the other.
pub(super) struct Orders {
    /// When the client is answered.
    deadline: Option<Instant>,
    /// Why none is begun any more.
    closed: Option<ApiError>,
}

impl Orders {
    /// Of a request that is answered within so many milliseconds. What is not done by then goes on, and nothing more is begun.
    pub(super) fn within(timeout_ms: i32) -> Orders {
        Orders { deadline: given(timeout_ms), closed: None }
    }

    /// Of a request that names no time.
    pub(super) fn patient() -> Orders {
        Orders { deadline: None, closed: None }
    }

    /// Carries one out. Where the metadata store did not take one, the next is not tried: each try may take seconds, and the client, which
    /// asks for all of them again, waits for one answer.
    ///
    /// # Errors
    /// `REQUEST_TIMED_OUT`: it goes on. `NOT_CONTROLLER`: ask again. Else what the order itself ends with.
    pub(super) async fn carry<T: Send + 'static>(
        &mut self,
        order: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone());
        }
        let mut order = Box::pin(order.in_current_span());
        let Some(done) = by(self.deadline, &mut order).await else {
            // Given up half-way it would leave a topic that is neither made nor not.
            tokio::spawn(order);
            self.closed = Some(late("the time of the request was over before this was begun"));
            return Err(late("it was not done within the time of the request, and goes on").in_doubt());
        };
        let done = done.map_err(told);
        if let Some(error) = done.as_ref().err().filter(|error| error.code == ErrorCode::NotController) {
            self.closed = Some(error.clone());
        }
        done
    }
}

/// When the client of an order is answered; `None` where it gives no time, as those do that leave it out: when it is done, which takes
/// seconds at most.
pub(super) fn given(timeout_ms: i32) -> Option<Instant> {
    let given = u64::try_from(timeout_ms).ok().filter(|given| *given > 0);
    given.map(|given| Instant::now() + Duration::from_millis(given))
}

/// What an order ends with, if it is done by then; `None` if it is not.
pub(super) async fn by<T>(deadline: Option<Instant>, order: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, order).await.ok(),
        None => Some(order.await),
    }
}

/// The refusal in Kafka's words. That the metadata store cannot be used, or this broker has lost its session, is to an admin client as if
/// the controller were another one: it asks again. The codes for leaders end its call.
pub(super) fn told(error: ApiError) -> ApiError {
    match error.code {
        ErrorCode::LeaderNotAvailable | ErrorCode::NotLeaderOrFollower => {
            ApiError { code: ErrorCode::NotController, ..error }
        }
        _ => error,
    }
}

fn late(message: &str) -> ApiError {
    ApiError::new(ErrorCode::RequestTimedOut, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    /// An order that nothing may begin.
    async fn never() -> Result<(), ApiError> {
        panic!("it was begun");
    }

    fn refused(code: ErrorCode) -> Result<(), ApiError> {
        Err(ApiError::new(code, "no"))
    }

    fn code(done: Result<(), ApiError>) -> Option<ErrorCode> {
        done.err().map(|error| error.code)
    }

    #[tokio::test]
    async fn what_the_metadata_store_does_not_take_is_another_controllers_and_nothing_more_is_tried() {
        for met in [ErrorCode::LeaderNotAvailable, ErrorCode::NotLeaderOrFollower, ErrorCode::NotController] {
            let mut orders = Orders::patient();
            assert_eq!(code(orders.carry(ready(Ok(()))).await), None);
            assert_eq!(code(orders.carry(ready(refused(met))).await), Some(ErrorCode::NotController), "{met:?}");
            assert_eq!(code(orders.carry(never()).await), Some(ErrorCode::NotController), "{met:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_of_one_order_stops_no_other() {
        let mut orders = Orders::within(60_000);
        let exists = ErrorCode::TopicAlreadyExists;
        assert_eq!(code(orders.carry(ready(refused(exists))).await), Some(exists));
        assert_eq!(code(orders.carry(ready(Ok(()))).await), None);
    }

    #[tokio::test]
    async fn an_order_that_takes_too_long_goes_on_and_no_other_is_begun() {
        let mut orders = Orders::within(1);
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let (tell, done) = tokio::sync::oneshot::channel();
        let order = async move {
            gone.await.expect("the test says when");
            tell.send(()).expect("the test waits");
            Ok(())
        };
        let late = orders.carry(order).await.expect_err("it waits for the test");
        assert_eq!((late.code, late.maybe_done), (ErrorCode::RequestTimedOut, true));
        let after = orders.carry(never()).await.expect_err("it is late");
        assert_eq!((after.code, after.maybe_done), (ErrorCode::RequestTimedOut, false));
        go.send(()).expect("it goes on");
        done.await.expect("it is carried out");
    }

    #[tokio::test]
    async fn without_a_time_an_order_is_waited_for() {
        for mut orders in [Orders::patient(), Orders::within(0), Orders::within(-1)] {
            let mut waiting = std::pin::pin!(orders.carry(pending::<Result<(), ApiError>>()));
            assert!(futures::poll!(&mut waiting).is_pending());
        }
    }
}
