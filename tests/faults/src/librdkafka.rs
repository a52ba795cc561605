//! A process with librdkafka, which writes or reads as other people's clients do, and what it tells.

use crate::clients::{PARTITIONS, TOPIC};
use crate::history::{Content, Event, Recorder};
use crate::payload::RecordId;
use millpond_tests::tools::{Tool, repository};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends records to all partitions.
    Write,
    /// Reads all partitions from the start.
    Read,
}

/// The process. It ends when dropped.
pub(crate) struct Librdkafka {
    child: Child,
    /// It goes on until this ends.
    stdin: Option<ChildStdin>,
    listener: JoinHandle<()>,
}

impl Librdkafka {
    /// Starts it.
    ///
    /// # Errors
    /// Why it cannot be run here.
    pub(crate) fn start(
        role: Role,
        number: u16,
        tick: Duration,
        bootstrap: &str,
        recorder: Arc<Recorder>,
    ) -> Result<Librdkafka, String> {
        let script = repository().join("tests/faults/clients/librdkafka.py");
        let word = match role {
            Role::Write => "write",
            Role::Read => "read",
        };
        let mut child = Command::new(Tool::ClientPython.find()?)
            .arg(script)
            .args([word, bootstrap, TOPIC, &PARTITIONS.to_string(), &number.to_string(), &tick.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("python: {error}"))?;
        if role == Role::Read {
            for partition in 0..PARTITIONS {
                recorder.record(Event::Started { reader: number, partition, offset: 0 });
            }
        }
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let listener = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                match (event(number, &line), in_flight(&line)) {
                    (Some(event), _) => recorder.record(event),
                    (None, Some(count)) => recorder.in_flight(number, count),
                    (None, None) => recorder.trouble(format!("client {number}: {line}")),
                }
                if line.starts_with('U') {
                    recorder.trouble(format!("client {number}: {line}"));
                }
            }
        });
        Ok(Librdkafka { child, stdin, listener })
    }

    /// Lets it come to its end, and waits for that: a writer knows the fate of all its records then.
    ///
    /// # Errors
    /// It failed.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        drop(self.stdin.take());
        self.listener.await.map_err(|error| error.to_string())?;
        let status = self.child.wait().await.map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the client of librdkafka ended with {status}")) }
    }
}

/// Reads a line; `None` if it tells of no event.
fn event(number: u16, line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let kind = words.next()?;
    let partition = words.next()?.parse().ok()?;
    let count = words.next()?.parse::<u64>().ok()?;
    let id = || Some(RecordId { writer: number, partition, number: u32::try_from(count).ok()? });
    let mut next = || words.next()?.parse::<u64>().ok();
    match kind {
        "S" => Some(Event::Sent { id: id()?, at: next()? }),
        "A" => {
            let offset = next()?;
            Some(Event::Acked { id: id()?, offset: Some(offset), at: next()? })
        }
        "U" => Some(Event::Unknown { id: id()?, at: next()? }),
        "R" => {
            let at = next()?;
            let name = line.rsplit(' ').next()?;
            let mut parts = name.split('/').map_while(|part| part.parse::<u32>().ok());
            let content = match (parts.next(), parts.next(), parts.next()) {
                (Some(writer), Some(of), Some(number)) => Content::Record(RecordId {
                    writer: writer.try_into().ok()?,
                    partition: of.try_into().ok()?,
                    number,
                }),
                _ => Content::Foreign(0),
            };
            Some(Event::Read { reader: number, partition, offset: count, content, at })
        }
        _ => None,
    }
}

/// Reads a line that tells how many requests are under way to one broker; `None` if it is none.
fn in_flight(line: &str) -> Option<u32> {
    line.strip_prefix("F ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_events() {
        let id = RecordId { writer: 10, partition: 2, number: 5 };
        let check = |line: &str, expected: Option<Event>| assert_eq!(event(10, line), expected, "{line}");
        check("S 2 5 77", Some(Event::Sent { id, at: 77 }));
        check("A 2 5 1000 78", Some(Event::Acked { id, offset: Some(1000), at: 78 }));
        check("U 2 5 79 _MSG_TIMED_OUT Local: Message timed out", Some(Event::Unknown { id, at: 79 }));
        let read = |content| Some(Event::Read { reader: 10, partition: 2, offset: 1000, content, at: 80 });
        check("R 2 1000 80 10/2/5", read(Content::Record(id)));
        check("R 2 1000 80 !", read(Content::Foreign(0)));
        check("E something", None);
        check("E 1 2", None);
        check("F 5", None);
        assert_eq!((in_flight("F 5"), in_flight("E 5"), in_flight("F five")), (Some(5), None, None));
    }
}
