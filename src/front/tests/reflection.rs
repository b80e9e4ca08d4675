//! Server reflection by tonic's client: the lane says the same as tonic's own service.

use std::net::SocketAddr;

use prost::Message;
use prost_types::FileDescriptorProto;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse};

use super::grpc::channel;
use super::{RULES, Server, bind, metrics, service};
use crate::front::connections::{GrpcServer, serve_grpc};
use crate::front::{DrainSwitch, Handler, Life};
use tidegate_serve::health::Health;
use tidegate_serve::refusal::Bounds;

const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The answers to these questions, all of one stream.
async fn reflected(
    address: SocketAddr,
    path: &'static str,
    questions: &[MessageRequest],
) -> Vec<MessageResponse> {
    let mut grpc = tonic::client::Grpc::new(channel(address).await);
    grpc.ready().await.expect("connected");
    // Both versions have the same messages.
    let codec = tonic_prost::ProstCodec::<ServerReflectionRequest, ServerReflectionResponse>::default();
    let request = |question: &MessageRequest| ServerReflectionRequest {
        host: "a host".to_owned(),
        message_request: Some(question.clone()),
    };
    let requests = tokio_stream::iter(questions.iter().map(request).collect::<Vec<_>>());
    let path = http::uri::PathAndQuery::from_static(path);
    let answers = grpc.streaming(tonic::Request::new(requests), path, codec).await.expect("a stream");
    let (mut answers, mut found) = (answers.into_inner(), Vec::new());
    while let Some(answer) = answers.message().await.expect("no error") {
        assert_eq!(answer.valid_host, "a host");
        assert_eq!(answer.original_request, Some(request(&questions[found.len()])));
        found.push(answer.message_response.expect("an answer"));
    }
    found
}

/// A lane without workers. It serves until the test ends.
async fn lane() -> SocketAddr {
    lane_with(RULES).await
}

/// The same under these rules.
pub(super) async fn lane_with(rules: &str) -> SocketAddr {
    let (listener, address) = bind().await;
    let metrics = metrics();
    let handler = Handler::new(service(Some(rules), &metrics).into(), metrics, Bounds::default());
    let server = GrpcServer::lane(handler.into(), Health::starting().into());
    tokio::spawn(async move {
        let switch = DrainSwitch::new();
        loop {
            let (arrival, life) = (listener.accept().await, Life::until(switch.drain()));
            tokio::spawn(serve_grpc(arrival, server.clone(), life));
        }
    });
    address
}

#[tokio::test]
async fn reflection_lists_every_service_and_describes_the_same_on_both_fronts() {
    let (server, lane) = (Server::start().await, lane().await);
    let message = "envoy.service.ratelimit.v3.RateLimitRequest";
    let symbols = [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit",
        message,
        "envoy.service.ratelimit.v3.RateLimitRequest.domain",
        "envoy.service.ratelimit.v3.RateLimitResponse.Code",
        "envoy.service.ratelimit.v3.RateLimitResponse.Code.OVER_LIMIT",
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
        "grpc.health.v1.Health",
        "kuadrant.service.ratelimit.v1.RateLimitService.Report",
    ];
    let mut questions = vec![
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileByFilename("envoy/service/ratelimit/v3/rls.proto".to_owned()),
        MessageRequest::FileByFilename("google/protobuf/duration.proto".to_owned()),
    ];
    questions.extend(symbols.map(|symbol| MessageRequest::FileContainingSymbol(symbol.to_owned())));
    for path in PATHS {
        let [mut of_lane, mut of_tonic] =
            [reflected(lane, path, &questions).await, reflected(server.grpc, path, &questions).await];
        assert_eq!((of_lane.len(), of_tonic.len()), (questions.len(), questions.len()));
        for (lists, version) in [(of_lane.remove(0), "both"), (of_tonic.remove(0), path)] {
            let MessageResponse::ListServicesResponse(list) = lists else { panic!("{lists:?}, {version}") };
            let mut names: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
            names.retain(|name| !name.starts_with("grpc.reflection."));
            names.sort_unstable();
            assert_eq!(
                names,
                [
                    "envoy.service.ratelimit.v3.RateLimitService",
                    "grpc.health.v1.Health",
                    "kuadrant.service.ratelimit.v1.RateLimitService",
                ]
            );
        }
        for ((lane, tonic), question) in of_lane.iter().zip(&of_tonic).zip(&questions[1..]) {
            assert_eq!(file(lane), file(tonic), "{question:?}");
        }
    }
}

/// The file that an answer describes.
fn file(answer: &MessageResponse) -> FileDescriptorProto {
    let MessageResponse::FileDescriptorResponse(files) = answer else { panic!("no file: {answer:?}") };
    let [file] = &files.file_descriptor_proto[..] else { panic!("one file: {files:?}") };
    FileDescriptorProto::decode(&file[..]).expect("a file")
}

#[tokio::test]
async fn what_reflection_does_not_find_is_an_error_after_which_the_client_may_ask_on() {
    let unknown = "no.such.Thing".to_owned();
    let extension = ExtensionRequest { containing_type: unknown.clone(), extension_number: 1 };
    let questions = [
        MessageRequest::FileContainingSymbol(unknown.clone()),
        MessageRequest::FileContainingSymbol(
            "envoy.service.ratelimit.v3.RateLimitRequest.nothing".to_owned(),
        ),
        MessageRequest::FileByFilename("../etc/passwd".to_owned()),
        MessageRequest::FileContainingExtension(extension),
        MessageRequest::AllExtensionNumbersOfType(unknown),
        MessageRequest::AllExtensionNumbersOfType("grpc.health.v1.HealthCheckRequest".to_owned()),
    ];
    let mut answers = reflected(lane().await, PATHS[0], &questions).await;
    let last = answers.pop();
    let Some(MessageResponse::AllExtensionNumbersResponse(none)) = last else { panic!("{last:?}") };
    assert_eq!(
        (&*none.base_type_name, none.extension_number.len()),
        ("grpc.health.v1.HealthCheckRequest", 0)
    );
    for answer in answers {
        let MessageResponse::ErrorResponse(error) = answer else { panic!("{answer:?}") };
        assert_eq!(error.error_code, 5);
        assert!(error.error_message.ends_with("not found"), "{error:?}");
    }
}
