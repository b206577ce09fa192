//! Every input that is kept, in every target: what was once found stays mended.

use std::path::Path;

#[test]
fn every_kept_input_keeps_every_promise() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, _) in headrace_fuzz::TARGETS {
        let files: Vec<_> =
            std::fs::read_dir(corpora.join(name)).unwrap().map(|file| file.unwrap()).collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in files {
            let data = std::fs::read(file.path()).unwrap();
            headrace_fuzz::TARGETS.iter().for_each(|(_, target)| target(&data));
        }
    }
}
