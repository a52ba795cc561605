//! Compiles the protos without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    let public = [
        "millpond/v1/types.proto",
        "millpond/v1/log.proto",
        "millpond/v1/groups.proto",
        "millpond/v1/transactions.proto",
        "millpond/v1/admin.proto",
    ];
    let internal = ["millpond/internal/v1/replication.proto"];
    let all = compile(&[public.as_slice(), internal.as_slice()].concat())?;
    let public = compile(&public)?;
    // Reflection serves the descriptors as they are, comments included; what brokers say to each other is not among them.
    std::fs::write(out.join("millpond.v1.bin"), public.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        // Received batches are slices of the message; `RecordBatches` is ours, so that sending does not join them first.
        .bytes(".")
        .extern_path(".millpond.v1.RecordBatches", "crate::RecordBatches")
        .btree_map(".")
        .codec_path("crate::codec::RoomFirst")
        .compile_fds(all.file_descriptor_set())?;
    Ok(())
}

fn compile(files: &[&str]) -> Result<protox::Compiler, protox::Error> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(files)?;
    Ok(compiler)
}
