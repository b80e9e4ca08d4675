//! Both minors of Envoy that are supported.

use super::{ALICE, statuses};
use crate::harness::envoy::{Envoy, Launch, binary, inside};
use crate::harness::redis::Redis;

/// Every callback is found, requests wait and go on, and Envoy has nothing to warn of.
#[test]
fn both_minors_of_envoy_run_the_module_and_warn_of_nothing() {
    let newest = binary();
    // tests/run installs it there.
    let older = newest.with_file_name("envoy-1.39");
    assert!(older.exists(), "no Envoy at {}: run tests/run once, it installs one", older.display());
    for program in [newest, older] {
        let redis = Redis::start(&[]);
        let settings = format!("settings: {{ REDIS_URL: \"{}\" }}", redis.url());
        let launch = Launch { program: program.clone(), ..Launch::default() };
        let envoy = Envoy::launch(launch, &inside(&[("headers: always", &settings)]));
        assert_eq!(statuses(&envoy, "/", ALICE, "ann", 6), [200, 200, 200, 200, 200, 429], "{program:?}");
        assert_eq!(statuses(&envoy, "/login", ALICE, "ann", 4), [200, 200, 200, 429]);
        assert_eq!(statuses(&envoy, "/health", ALICE, "ann", 2), [200; 2]);
        assert!(envoy.stat("dynamicmodulescustom.tidegate_waited") > 0, "somebody asked Redis");
        assert_eq!(envoy.lines_with("ABI version"), 0, "{}", envoy.output());
    }
}
