//! The processes of a pipeline: each worker is one, and another one as soon as that ends. They are killed, stopped and replaced at will.

use super::ledger::{Ledger, Told};
use super::worker::{WORD, is_ours};
use super::{GROUP, SINK, SINK_PARTITIONS};
use crate::clients::TOPIC;
use crate::clock::now;
use crate::fleet::PATIENCE;
use millpond_tests::tools::{Tool, repository};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A transaction of a worker is aborted, and a silent one out of the group, after so long; as `clients/pipeline.py` has it.
pub(crate) const SILENT_AT_MOST: Duration = Duration::from_secs(10);

/// How long it takes until a worker that has ended is started again.
const PAUSE: Duration = Duration::from_millis(100);

/// Orders of the script that wait to be carried out.
const ORDERS: usize = 16;

/// Where brokers are.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) kafka: String,
    pub(crate) grpc: String,
}

/// What a worker's process is made to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// kill -9; another one takes its place.
    Kill,
    /// SIGSTOP.
    Stop,
    /// Another process takes a stopped one's place, and its transactional id.
    Replace,
    /// SIGCONT, of all that are stopped: what they had open cannot be committed any more.
    Wake,
    /// It comes to the end of what it does, and no other takes its place.
    End,
    /// kill -9, and no other takes its place.
    KillForGood,
}

/// All workers of a pipeline.
pub(crate) struct Workers {
    orders: Vec<mpsc::Sender<Order>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts so many.
    pub(crate) fn start(count: u16, place: &Place, ledger: &Arc<Ledger>) -> Workers {
        let (mut orders, mut tasks) = (Vec::new(), Vec::new());
        for worker in 0..count {
            let (order, ordered) = mpsc::channel(ORDERS);
            orders.push(order);
            tasks.push(tokio::spawn(supervise(worker, place.clone(), Arc::clone(ledger), ordered)));
        }
        Workers { orders, tasks }
    }

    /// How many.
    pub(crate) fn count(&self) -> u16 {
        u16::try_from(self.orders.len()).expect("a few")
    }

    /// Gives an order to one worker.
    ///
    /// # Errors
    /// It is not there any more.
    pub(crate) async fn order(&self, worker: u16, order: Order) -> Result<(), String> {
        let sent = self.orders[usize::from(worker)].send(order).await;
        sent.map_err(|_| format!("worker {worker} is given up"))
    }

    /// Ends all of them, in order or not, and waits until they have ended.
    ///
    /// # Errors
    /// One does not end.
    pub(crate) async fn end(&mut self, order: Order) -> Result<(), String> {
        for worker in 0..self.count() {
            self.order(worker, order).await?;
        }
        for task in self.tasks.drain(..) {
            let ended = tokio::time::timeout(PATIENCE, task).await;
            ended.map_err(|_| "a worker does not end".to_owned())?.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// One process.
struct Life {
    number: u32,
    child: Child,
    /// It goes on until this ends.
    stdin: Option<ChildStdin>,
    listener: JoinHandle<()>,
}

impl Life {
    fn start(worker: u16, number: u32, place: &Place, ledger: &Arc<Ledger>) -> Result<Life, String> {
        let (mut command, bootstrap) = if is_ours(worker) {
            let program = std::env::current_exe().map_err(|error| format!("a worker: {error}"))?;
            let mut command = Command::new(program);
            command.arg(WORD);
            (command, &place.grpc)
        } else {
            let mut command = Command::new(Tool::ClientPython.find()?);
            command.arg(repository().join("tests/faults/clients/pipeline.py"));
            (command, &place.kafka)
        };
        command.args([bootstrap, TOPIC, SINK, &SINK_PARTITIONS.to_string(), GROUP]);
        command.args([worker.to_string(), number.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("a worker: {error}"))?;
        ledger.starts(now());
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let heard = Arc::clone(ledger);
        let listener = tokio::spawn(async move {
            // Ends with the process.
            while let Ok(Some(line)) = lines.next_line().await {
                heard.take_down(worker, number, Told::read(&line));
            }
        });
        Ok(Life { number, child, stdin, listener })
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits until it has ended and all that it told is taken down.
    async fn ended(mut self) {
        let _ = self.child.wait().await;
        let _ = self.listener.await;
    }

    async fn kill(mut self) {
        // It may have ended meanwhile.
        let _ = self.child.start_kill();
        self.ended().await;
    }
}

/// Keeps a worker working until it is told to end.
async fn supervise(worker: u16, place: Place, ledger: Arc<Ledger>, mut orders: mpsc::Receiver<Order>) {
    let mut zombies: Vec<Life> = Vec::new();
    // Names a process for good, also among those of a later start.
    let mut number = ledger.next_life(worker);
    loop {
        let mut life = match Life::start(worker, number, &place, &ledger) {
            Ok(life) => life,
            Err(error) => return ledger.trouble(error),
        };
        let mut stopped = false;
        let goes_on = loop {
            tokio::select! {
                _ = life.child.wait() => {
                    life.ended().await;
                    break true;
                }
                order = orders.recv() => match order {
                    Some(Order::Kill) => {
                        life.kill().await;
                        break true;
                    }
                    Some(Order::Stop) => {
                        life.signal(Signal::STOP);
                        stopped = true;
                    }
                    Some(Order::Replace) if stopped => {
                        zombies.push(life);
                        break true;
                    }
                    Some(Order::Replace) => {}
                    Some(Order::Wake) => {
                        if stopped {
                            ledger.outlaw(worker, life.number);
                            life.signal(Signal::CONT);
                            stopped = false;
                        }
                        for zombie in zombies.drain(..) {
                            ledger.outlaw(worker, zombie.number);
                            zombie.signal(Signal::CONT);
                            tokio::spawn(fenced(zombie, Arc::clone(&ledger)));
                        }
                    }
                    Some(Order::End) => {
                        life.signal(Signal::CONT);
                        drop(life.stdin.take());
                        life.ended().await;
                        break false;
                    }
                    Some(Order::KillForGood) | None => {
                        life.kill().await;
                        break false;
                    }
                }
            }
        };
        if !goes_on {
            break;
        }
        number = ledger.next_life(worker);
        tokio::time::sleep(PAUSE).await;
    }
    for zombie in zombies {
        zombie.kill().await;
    }
}

/// A zombie whose place was taken finds that out, and ends by itself.
async fn fenced(mut zombie: Life, ledger: Arc<Ledger>) {
    let number = zombie.number;
    match tokio::time::timeout(PATIENCE, zombie.child.wait()).await {
        Ok(_) => zombie.ended().await,
        Err(_) => {
            ledger.broke(format!("process {number}, whose transactional id another one has, is not fenced"));
            zombie.kill().await;
        }
    }
}
