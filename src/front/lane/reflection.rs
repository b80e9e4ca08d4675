//! Server reflection, `grpc.reflection.v1` and `v1alpha`: the services, and the files that describe them.
//!
//! In: an encoded question. Out: the encoded answer. Both versions have the same messages. When something is not
//! found, the answer has an error, and the client may ask again.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, EnumDescriptor, FileDescriptor, MessageDescriptor, ServiceDescriptor};
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse as Answer;
use tonic_reflection::pb::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use tonic_reflection::pb::{self, v1::server_reflection_request::MessageRequest as Question};

use crate::front::proto;
use tidegate_grpc::status::Status;
use tidegate_grpc::status::code::{INVALID_ARGUMENT, NOT_FOUND};

/// The paths that are answered here.
pub const PATHS: &[&str] = &[
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The files of all services on the port. Built at the first question.
static FILES: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut files = DescriptorPool::new();
    for set in [
        proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        pb::v1::FILE_DESCRIPTOR_SET,
        pb::v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        files.decode_file_descriptor_set(set).expect("our own descriptors decode");
    }
    files
});

/// Answers a question.
/// Fails when it cannot be decoded.
pub fn answer(question: &[u8]) -> Result<Vec<u8>, Status> {
    let request = ServerReflectionRequest::decode(question)
        .map_err(|error| Status { code: INVALID_ARGUMENT, message: error.to_string().into() })?;
    let answer = match &request.message_request {
        Some(question) => {
            find(question).unwrap_or_else(|| error(NOT_FOUND, format!("{question:?}: not found")))
        }
        None => error(INVALID_ARGUMENT, "the request asks for nothing".to_owned()),
    };
    let response = ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(answer),
    };
    Ok(response.encode_to_vec())
}

/// The answer to a question, if what it asks for exists.
fn find(question: &Question) -> Option<Answer> {
    match question {
        Question::ListServices(_) => {
            let service =
                FILES.services().map(|service| ServiceResponse { name: service.full_name().to_owned() });
            Some(Answer::ListServicesResponse(ListServiceResponse { service: service.collect() }))
        }
        Question::FileByFilename(name) => FILES.get_file_by_name(name).as_ref().map(file),
        Question::FileContainingSymbol(symbol) => file_with(symbol).as_ref().map(file),
        // No file has extensions.
        Question::FileContainingExtension(_) => None,
        Question::AllExtensionNumbersOfType(message) => {
            let message = FILES.get_message_by_name(message)?;
            let base_type_name = message.full_name().to_owned();
            let none = ExtensionNumberResponse { base_type_name, extension_number: Vec::new() };
            Some(Answer::AllExtensionNumbersResponse(none))
        }
    }
}

fn file(file: &FileDescriptor) -> Answer {
    Answer::FileDescriptorResponse(FileDescriptorResponse {
        file_descriptor_proto: vec![file.encode_to_vec()],
    })
}

fn error(code: u8, error_message: String) -> Answer {
    Answer::ErrorResponse(ErrorResponse { error_code: code.into(), error_message })
}

/// The file that declares this service, message or enum, or a member of one.
fn file_with(symbol: &str) -> Option<FileDescriptor> {
    if let Some(declared) = Declared::named(symbol) {
        return Some(declared.file());
    }
    let (parent, member) = symbol.rsplit_once('.')?;
    Declared::named(parent).filter(|declared| declared.has(member)).map(|declared| declared.file())
}

/// The names that a file declares.
enum Declared {
    Service(ServiceDescriptor),
    Message(MessageDescriptor),
    Enum(EnumDescriptor),
}

impl Declared {
    fn named(name: &str) -> Option<Self> {
        let service = FILES.get_service_by_name(name).map(Self::Service);
        service
            .or_else(|| FILES.get_message_by_name(name).map(Self::Message))
            .or_else(|| FILES.get_enum_by_name(name).map(Self::Enum))
    }

    fn file(&self) -> FileDescriptor {
        match self {
            Self::Service(service) => service.parent_file(),
            Self::Message(message) => message.parent_file(),
            Self::Enum(values) => values.parent_file(),
        }
    }

    fn has(&self, member: &str) -> bool {
        match self {
            Self::Service(service) => service.methods().any(|method| method.name() == member),
            Self::Message(message) => {
                message.get_field_by_name(member).is_some()
                    || message.oneofs().any(|oneof| oneof.name() == member)
            }
            Self::Enum(values) => values.get_value_by_name(member).is_some(),
        }
    }
}
