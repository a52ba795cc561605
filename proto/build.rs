//! Compiles the protos without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(["millpond/v1/types.proto", "millpond/v1/log.proto", "millpond/v1/admin.proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    // Reflection serves the descriptors as they are, comments included.
    std::fs::write(out.join("millpond.v1.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        // Received batches are slices of the message; `RecordBatches` is ours, so that sending does not join them first.
        .bytes(".")
        .extern_path(".millpond.v1.RecordBatches", "crate::RecordBatches")
        .btree_map(".")
        .codec_path("crate::codec::RoomFirst")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
