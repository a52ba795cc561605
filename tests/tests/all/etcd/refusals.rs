//! An etcd that cannot be used: the error says what to do, in one line, and never holds a secret.

use super::{VERSIONS, cluster, key, options, put, under, write};
use millpond_metadata::etcd::{ConnectError, Etcd, EtcdOptions, Files, Problem, Secret, Tls, User};
use millpond_metadata::kv::{Kv, KvError, Range, Txn};
use millpond_tests::etcd::{Certificates, EtcdCluster};
use millpond_tests::tools::{Tool, skip};
use serde_json::json;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PASSWORD: &str = "ein-geheimes-Wort";

/// The error of a connection that fails, after it was looked through for secrets.
async fn refused(options: EtcdOptions) -> ConnectError {
    let error = Etcd::connect(options).await.map(drop).expect_err("it cannot be used");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(PASSWORD) && !shown.contains("PRIVATE KEY"), "{shown}");
    assert!(!error.to_string().contains('\n'), "{error}");
    eprintln!("{error}");
    error
}

fn user(name: &str, password: &str) -> Option<User> {
    Some(User { name: name.to_owned(), password: Secret::new(password) })
}

/// As `options`, and short of patience.
fn impatient(url: &str) -> EtcdOptions {
    EtcdOptions { deadline: Duration::from_millis(1500), ..options(url) }
}

#[tokio::test]
async fn users_and_passwords() {
    for tool in VERSIONS {
        let Some(cluster) = cluster("users_and_passwords", tool, 1).await else { continue };
        let with = |user| EtcdOptions { user, ..options(&cluster.url()) };
        assert_eq!(refused(with(user("root", PASSWORD))).await.problem, Problem::NoUsers);
        make_users(&cluster).await;
        assert_eq!(refused(with(None)).await.problem, Problem::WantsUser);
        assert_eq!(refused(with(user("pond", "wrong"))).await.problem, Problem::WrongPassword);
        assert_eq!(refused(with(user("nobody", PASSWORD))).await.problem, Problem::WrongPassword);
        assert_eq!(refused(with(user("other", PASSWORD))).await.problem, Problem::NotPermitted);

        let kv = Etcd::connect(with(user("pond", PASSWORD))).await.expect("all is right");
        let revision = write(&kv, vec![put("/test/a", "1")]).await;
        let mut watch = kv.watch(under("/test/"), revision).await.expect("it may");
        assert_eq!(watch.next().await.expect("it may").revision, revision);
        watch.request_progress().await.expect("it may");
        kv.position().await.expect("it may");
        let lease = kv.grant(Duration::from_secs(60)).await.expect("it may");
        assert!(kv.keep_alive(lease.id).await.expect("it may").is_some());
        let outside = [
            kv.range(Range::key(&key("/else"))).await.map(drop),
            kv.txn(Txn { then: vec![put("/else", "1")], ..Txn::default() }).await.map(drop),
        ];
        for answer in outside {
            let Err(KvError::Unavailable(reason)) = answer else { panic!("{answer:?}") };
            assert!(reason.contains("grant"), "{reason}");
        }
    }
}

/// `pond` may do everything below `/test/`, `other` nothing.
async fn make_users(cluster: &EtcdCluster) {
    let base64 = |text: &str| match text {
        "/test/" => "L3Rlc3Qv",
        "/test0" => "L3Rlc3Qw",
        _ => unreachable!("the two that are needed"),
    };
    let permission = json!({"permType": "READWRITE", "key": base64("/test/"), "range_end": base64("/test0")});
    let requests = [
        ("auth/user/add", json!({"name": "root", "password": PASSWORD})),
        ("auth/user/add", json!({"name": "pond", "password": PASSWORD})),
        ("auth/user/add", json!({"name": "other", "password": PASSWORD})),
        ("auth/role/add", json!({"name": "root"})),
        ("auth/role/add", json!({"name": "ponds"})),
        ("auth/role/grant", json!({"name": "ponds", "perm": permission})),
        ("auth/user/grant", json!({"user": "root", "role": "root"})),
        ("auth/user/grant", json!({"user": "pond", "role": "ponds"})),
        ("auth/enable", json!({})),
    ];
    for (path, body) in requests {
        cluster.post(0, path, &body).await.expect(path);
    }
}

#[tokio::test]
async fn certificates() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (ours, others) = (dir.path().join("ours"), dir.path().join("others"));
    std::fs::create_dir(&ours).and_then(|()| std::fs::create_dir(&others)).expect("the folder can be written");
    let made = Certificates::make(&ours).and_then(|ours| Ok((ours, Certificates::make(&others)?)));
    let (ours, others) = match made {
        Ok(made) => made,
        Err(why) => return skip("certificates", &why),
    };
    let read = |path: &Path| std::fs::read(path).expect("it was made");
    let tls = |ca: &Certificates, identity: Option<&Certificates>| {
        let identity = identity.map(|made| (read(&made.certificate), Secret::new(read(&made.key))));
        Some(Tls { ca: read(&ca.ca), identity })
    };
    for tool in VERSIONS {
        let cluster = match EtcdCluster::start_tls(tool, &ours) {
            Ok(cluster) => cluster,
            Err(why) => {
                skip("certificates", &why);
                continue;
            }
        };
        let with = |tls| EtcdOptions { tls, ..impatient(&cluster.url()) };
        let patient = EtcdOptions { deadline: Duration::from_secs(30), ..with(tls(&ours, Some(&ours))) };
        let kv = Etcd::connect(patient).await.expect("all is right");
        write(&kv, vec![put("a", "1")]).await;
        assert_eq!(refused(with(tls(&others, Some(&ours)))).await.problem, Problem::UnknownCa);
        assert_eq!(refused(with(tls(&ours, None))).await.problem, Problem::WantsTls);
        assert_eq!(refused(with(tls(&ours, Some(&others)))).await.problem, Problem::WantsTls);
        assert_eq!(refused(with(None)).await.problem, Problem::WantsTls);
        let nonsense = Some(Tls { ca: b"nonsense".to_vec(), identity: None });
        assert_eq!(refused(with(nonsense)).await.problem, Problem::BadPem);
    }
    if let Some(plain) = cluster("certificates", Tool::EtcdOfDistribution, 1).await {
        let options = EtcdOptions { tls: tls(&ours, None), ..impatient(&plain.url()) };
        assert_eq!(refused(options).await.problem, Problem::NoTls);
    }
}

/// Certificates are replaced while brokers run: what was read at the start is of no use once etcd comes back with the new ones.
#[tokio::test]
async fn certificates_that_were_replaced_are_read_for_the_next_connection() {
    const NAME: &str = "certificates_that_were_replaced_are_read_for_the_next_connection";
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (ours, next) = (dir.path().join("ours"), dir.path().join("next"));
    std::fs::create_dir(&ours).and_then(|()| std::fs::create_dir(&next)).expect("the folder can be written");
    let made = Certificates::make(&ours).and_then(|ours| Ok((ours, Certificates::make(&next)?)));
    let (ours, next) = match made {
        Ok(made) => made,
        Err(why) => return skip(NAME, &why),
    };
    let mut cluster = match EtcdCluster::start_tls(Tool::EtcdPinned, &ours) {
        Ok(cluster) => cluster,
        Err(why) => return skip(NAME, &why),
    };
    let read = |path: &Path| std::fs::read(path).expect("it was made");
    let identity = Some((read(&ours.certificate), Secret::new(read(&ours.key))));
    let options = EtcdOptions { tls: Some(Tls { ca: read(&ours.ca), identity }), ..impatient(&cluster.url()) };
    let files = Files {
        ca: Some(ours.ca.clone()),
        identity: Some((ours.certificate.clone(), ours.key.clone())),
        password: None,
    };
    let patient = EtcdOptions { files, deadline: Duration::from_secs(30), ..options.clone() };
    let kv = Etcd::connect(patient).await.expect("all is right");
    let forgetful = Etcd::connect(options).await.expect("all is right");
    write(&kv, vec![put("a", "1")]).await;
    cluster.kill(0);
    for (from, to) in [(&next.ca, &ours.ca), (&next.certificate, &ours.certificate), (&next.key, &ours.key)] {
        std::fs::copy(from, to).expect("it is ours");
    }
    cluster.start_again(0);
    let back = async {
        let mut look = tokio::time::interval(Duration::from_millis(50));
        while kv.range(Range::key(&key("a"))).await.is_err() {
            look.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("it shows what etcd trusts now");
    let refused = forgetful.range(Range::key(&key("a"))).await.expect_err("it shows what nobody trusts");
    assert!(matches!(refused, KvError::Unavailable(_)), "{refused}");
}

#[tokio::test]
async fn wrong_ports() {
    let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
    let listen = || async { TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port") };
    let free = port(&listen().await);
    assert_eq!(refused(impatient(&format!("etcd://127.0.0.1:{free}"))).await.problem, Problem::Unreachable);
    assert_eq!(refused(impatient("etcd://no-such-host.invalid:1")).await.problem, Problem::Unreachable);

    // It takes connections and says nothing.
    let silent = listen().await;
    assert_eq!(refused(impatient(&format!("etcd://127.0.0.1:{}", port(&silent)))).await.problem, Problem::Silent);

    // A server of something else.
    let web = listen().await;
    let url = format!("etcd://127.0.0.1:{}", port(&web));
    let serve = tokio::spawn(async move {
        while let Ok((mut stream, _)) = web.accept().await {
            let mut request = [0; 1024];
            // What a client that is gone does not read is nobody's loss.
            let _ = stream.read(&mut request).await;
            let _ =
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        }
    });
    // Whether its answer or its hanging up is met first decides which of the two is said; the advice names both.
    let error = refused(impatient(&url)).await;
    assert!(matches!(error.problem, Problem::NotEtcd | Problem::WantsTls), "{error}");
    assert!(error.to_string().contains("not the client port of an etcd"), "{error}");
    serve.abort();
}
