//! Requests about transactions, against the independent encoder.

use super::*;

#[test]
fn describe_producers_is_read() {
    let body = |_| {
        let asked = theirs::describe_producers_request::TopicRequest::default()
            .with_name(topic("t"))
            .with_partition_indexes(vec![0, 7]);
        theirs::DescribeProducersRequest::default().with_topics(vec![asked])
    };
    check(Api::DescribeProducers, body, |_, body| {
        let Body::DescribeProducers(request) = body else { panic!("{body:?}") };
        let [topic] = &request.topics[..] else { panic!("{request:?}") };
        assert_eq!((topic.name.as_str(), &topic.partitions[..]), ("t", &[0, 7][..]));
    });
}
