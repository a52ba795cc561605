//! How a request's span joins the trace of whoever sent it: W3C trace context in its headers.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::codegen::http::HeaderMap;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The span of a client that a request names as its cause, if it does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parent(Option<Context>);

impl Parent {
    /// Reads `traceparent` and `tracestate`. What is malformed counts as absent, as the standard says.
    pub(crate) fn of(headers: &HeaderMap) -> Parent {
        if !headers.contains_key("traceparent") {
            return Parent(None);
        }
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        Parent(context.span().span_context().is_valid().then_some(context))
    }

    /// Makes `span`, which has just been made, a part of the client's trace.
    pub(crate) fn adopt(&self, span: &Span) {
        if let Some(context) = self.0.as_ref().filter(|_| !span.is_disabled()) {
            child(span, context);
        }
    }
}

/// Makes `span`, which has just been made, a child of the span of `context`.
pub(crate) fn child(span: &Span, context: &Context) {
    // Fails only where spans go to the log and nowhere else: there are no traces to join.
    let _ = span.set_parent(context.clone());
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn trace_context_is_taken_from_headers_and_nonsense_is_not() {
        let parent = |text: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(text) = text {
                headers.insert("traceparent", text.parse().expect("a header"));
            }
            Parent::of(&headers).0.map(|context| context.span().span_context().clone())
        };
        let found = parent(Some(SAMPLED)).expect("it is well formed");
        assert_eq!(found.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(found.span_id().to_string(), "b7ad6b7169203331");
        assert!(found.is_sampled() && found.is_remote());
        let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        for absent in [None, Some(""), Some("00-xyz"), Some(zeros), Some(&SAMPLED[..40])] {
            assert!(parent(absent).is_none(), "{absent:?}");
        }
    }
}
