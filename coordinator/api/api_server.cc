// Routes.
// Thread: the listener's.
// Must never: block, or start device work for a request that is refused.
#include "coordinator/api/api_server.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/api/admin_server.h"
#include "coordinator/api/anthropic_messages.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/call_constraint.h"
#include "coordinator/api/chat_page.h"
#include "coordinator/api/chat_request.h"
#include "coordinator/api/completion_request.h"
#include "coordinator/api/generation.h"
#include "coordinator/api/key_gate.h"
#include "coordinator/api/key_limits.h"
#include "coordinator/api/logit_edits.h"
#include "coordinator/api/messages_writer.h"
#include "coordinator/api/raw_prompts.h"
#include "coordinator/api/request_ids.h"
#include "coordinator/api/submission.h"
#include "coordinator/text/call_texts.h"
#include "protocol/base/log.h"
#include "protocol/base/strings.h"
#include "protocol/http/http_server.h"
#include "protocol/json/json_writer.h"

namespace skein::coordinator {
namespace {

using protocol::Concat;
using protocol::HttpRequest;
using protocol::HttpResponse;
using protocol::JsonValue;
using protocol::JsonWriter;
using Clock = std::chrono::steady_clock;
using Exchange = std::shared_ptr<protocol::HttpExchange>;

constexpr size_t kLoggedFieldsMax = 256;
constexpr std::string_view kModelsPrefix = "/v1/models/";
constexpr std::string_view kModelRoute = "/v1/models/{id}";
constexpr std::string_view kMessagesPrefix = "/v1/messages";

}  // namespace

class ApiServer::Impl {
 public:
  Impl(Options options, const Tokenizer& tokenizer, const ChatTemplate& chat, FrontDoor& front_door)
      : options_(std::move(options)),
        tokenizer_(tokenizer),
        chat_(chat),
        front_door_(front_door),
        gate_(options_.keys, options_.auth_failures_per_minute_max),
        ids_(options_.id_seed),
        constraints_(tokenizer, chat, options_.request_limits.vocab_size),
        created_(options_.unix_time()) {}

  absl::Status Listen();
  protocol::HttpServer& http() { return *http_; }
  const DeltaCourier& courier() const { return *courier_; }
  void StartDraining() { is_draining_ = true; }
  void Stop() {
    http_->Stop();
    courier_->Close();  // what the control loop still delivers is dropped
  }

 private:
  // One request on its way through the routes.
  struct Call {
    HttpRequest request;
    Exchange exchange;
    JsonValue body;  // of a POST
    std::string_view route = "other";
    uint64_t number = 0;
    protocol::HttpHeaders headers;  // x-request-id
    Clock::time_point arrival;
    const ApiKey& key() const { return KeyOf(request); }
  };
  using Handler = void (Impl::*)(Call&);
  struct Route {
    std::string_view path;
    std::string_view method;
    Handler handler;
  };
  static const std::array<Route, 13> kRoutes;
  // As events name it.
  static std::string_view RouteOf(std::string_view path);

  std::optional<HttpResponse> CheckHead(HttpRequest& head);
  void OnRequest(HttpRequest request, Exchange exchange);
  void Dispatch(Call& call);
  void Send(Call& call, HttpResponse response);
  void SendJson(Call& call, std::string body);
  void SendOr(Call& call, ApiOr<std::string> body);
  void SendError(Call& call, ApiError error);
  void Emit(const ApiEvent& event) const {
    if (options_.on_event) options_.on_event(event);
  }
  HttpResponse ErrorAnswer(std::string_view route, const ApiError& error);
  // `known`: the wait; nothing: as the server predicts it.
  int RetryAfterSeconds(std::optional<double> known = std::nullopt);

  void HandleChat(Call& call);
  void HandleCompletion(Call& call);
  void HandleMessages(Call& call);
  void HandleCountTokens(Call& call);
  // The prompt of a conversation, with its calls as the model wrote them.
  ApiOr<ChatPrompt> Render(const Call& call, ChatRequest* request);
  // Renders and submits a chat, whatever its form was.
  void Converse(Call& call, ChatRequest request, RequestForm form);
  void HandleTokenize(Call& call);
  void HandleDetokenize(Call& call);
  void HandleModels(Call& call);
  void HandleModel(Call& call);
  void HandleMetrics(Call& call);
  void HandleVersion(Call& call);
  void HandleReady(Call& call) { HandleHealth(call, HealthProbe::kReady); }
  void HandleLive(Call& call) { HandleHealth(call, HealthProbe::kLive); }
  void HandleStartup(Call& call) { HandleHealth(call, HealthProbe::kStartup); }
  void HandleHealth(Call& call, HealthProbe probe);

  std::optional<ApiError> CheckBeforeEncoding(const Call& call, const GenerationParams& params,
                                              size_t text_bytes);
  Generation::Setup SetupOf(const Call& call, const GenerationParams& params, RequestForm form);
  std::optional<ApiError> Submit(Call& call, GenerationParams params, GenerationInput input);
  ApiOr<JsonValue> ParseBody(const Call& call) const;
  bool IsServed(std::string_view name) const;
  void CountGrammar(std::string_view result, Clock::time_point begin) const;
  void CountUnknown(const std::vector<std::string>& names);

  const Options options_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  FrontDoor& front_door_;
  KeyGate gate_;
  KeyLimiter limiter_;
  const RequestIds ids_;
  CallTexts call_texts_;
  const CallConstraints constraints_;
  const int64_t created_;
  const std::shared_ptr<DeltaCourier> courier_ = std::make_shared<DeltaCourier>();
  std::unique_ptr<protocol::HttpServer> http_;
  uint64_t num_calls_ = 0;
  bool is_draining_ = false;
  std::set<std::string> logged_fields_;
  bool logged_penalties_ = false;
};

const std::array<ApiServer::Impl::Route, 13> ApiServer::Impl::kRoutes = {{
    {"/v1/chat/completions", "POST", &Impl::HandleChat},
    {"/v1/completions", "POST", &Impl::HandleCompletion},
    {"/v1/messages", "POST", &Impl::HandleMessages},
    {"/v1/messages/count_tokens", "POST", &Impl::HandleCountTokens},
    {"/tokenize", "POST", &Impl::HandleTokenize},
    {"/detokenize", "POST", &Impl::HandleDetokenize},
    {"/v1/models", "GET", &Impl::HandleModels},
    {"/metrics", "GET", &Impl::HandleMetrics},
    {"/version", "GET", &Impl::HandleVersion},
    {"/health", "GET", &Impl::HandleReady},
    {"/health/ready", "GET", &Impl::HandleReady},
    {"/health/live", "GET", &Impl::HandleLive},
    {"/health/startup", "GET", &Impl::HandleStartup},
}};

absl::Status ApiServer::Impl::Listen() {
  protocol::HttpServer::Options http;
  http.host = options_.host;
  http.port = options_.port;
  http.listen_fd = options_.listen_fd;
  http.limits = options_.http_limits;
  http.tls = options_.tls;
  http.root_path = options_.root_path;
  http.headers = options_.headers;
  http.on_head = [this](HttpRequest& head) { return CheckHead(head); };
  http.on_request = [this](HttpRequest request, Exchange exchange) {
    OnRequest(std::move(request), std::move(exchange));
  };
  http.on_refusal = [this](const protocol::HttpRefusal& refusal) {
    HttpResponse response = ErrorResponse(FromRefusal(refusal), RetryAfterSeconds());
    response.headers.emplace_back("x-request-id", ids_.HeaderId({}, ++num_calls_));
    return response;
  };
  http.on_event = [this](const protocol::HttpEvent& event) { Emit(EventOf(event)); };
  absl::StatusOr<std::unique_ptr<protocol::HttpServer>> server =
      protocol::HttpServer::Create(std::move(http));
  if (!server.ok()) return server.status();
  http_ = *std::move(server);
  return absl::OkStatus();
}

std::string_view ApiServer::Impl::RouteOf(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (route.path == path) return route.path;
  }
  return path.starts_with(kModelsPrefix) ? kModelRoute : "other";
}

std::optional<HttpResponse> ApiServer::Impl::CheckHead(HttpRequest& head) {
  const Clock::time_point now = Clock::now();
  auto error = gate_.Admit(head, options_.unix_time(), now);
  const bool is_stranger = error.has_value() && error->status != 403;
  if (!error.has_value()) error = limiter_.CountRequest(KeyOf(head), now);
  if (!error.has_value()) return std::nullopt;
  const std::string_view route = RouteOf(head.path);
  Emit({ApiEvent::Kind::kRequest, route});
  Emit({is_stranger ? ApiEvent::Kind::kAuthFailure : ApiEvent::Kind::kRefusal,
        route,
        {},
        error->code,
        error->status});
  Emit({ApiEvent::Kind::kResponse, route, ShownMethod(head.method), {}, error->status});
  HttpResponse response = ErrorAnswer(route, *error);
  response.headers.emplace_back("x-request-id",
                                ids_.HeaderId(head.Header("x-request-id"), ++num_calls_));
  return response;
}

void ApiServer::Impl::OnRequest(HttpRequest request, Exchange exchange) {
  Call call;
  call.request = std::move(request);
  call.exchange = std::move(exchange);
  call.number = ++num_calls_;
  call.arrival = Clock::now();
  call.headers.emplace_back("x-request-id",
                            ids_.HeaderId(call.request.Header("x-request-id"), call.number));
  Dispatch(call);
}

void ApiServer::Impl::Dispatch(Call& call) {
  call.route = RouteOf(call.request.path);
  Emit({ApiEvent::Kind::kRequest, call.route});
  std::string allowed;
  if (auto file = ChatPageFile(call.request.path, options_.root_path)) {
    if (call.request.method == "GET") return Send(call, *std::move(file));
    allowed = "GET";
  }
  for (const Route& route : kRoutes) {
    if (route.path != call.request.path) continue;
    if (route.method != call.request.method) {
      allowed = route.method;
      continue;
    }
    const std::string_view encoding = call.request.Header("content-encoding");
    const std::string_view type = call.request.Header("content-type");
    if (route.method == "POST" && (!IsJsonType(type) || !encoding.empty())) {
      return SendError(call, UnsupportedMediaType(encoding.empty() ? type : encoding));
    }
    if (route.method == "POST") {
      auto body = ParseBody(call);
      if (const auto* error = std::get_if<ApiError>(&body)) return SendError(call, *error);
      call.body = std::move(std::get<JsonValue>(body));
    }
    return (this->*route.handler)(call);
  }
  if (call.route == kModelRoute) {
    if (call.request.method == "GET") return HandleModel(call);
    allowed = "GET";
  }
  if (!allowed.empty()) {
    return SendError(call, MethodNotAllowed(call.request.method, std::move(allowed)));
  }
  SendError(call, RouteNotFound(call.request.path));
}

void ApiServer::Impl::Send(Call& call, HttpResponse response) {
  Emit({ApiEvent::Kind::kResponse,
        call.route,
        ShownMethod(call.request.method),
        {},
        response.status});
  response.headers.insert(response.headers.end(), call.headers.begin(), call.headers.end());
  call.exchange->Respond(std::move(response));
}

void ApiServer::Impl::SendJson(Call& call, std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  Send(call, std::move(response));
}

void ApiServer::Impl::SendError(Call& call, ApiError error) {
  NameField(call.route, &error);
  Emit({ApiEvent::Kind::kRefusal,
        call.route,
        {},
        error.reason.empty() ? error.code : error.reason,
        error.status});
  Send(call, ErrorAnswer(call.route, error));
}

HttpResponse ApiServer::Impl::ErrorAnswer(std::string_view route, const ApiError& error) {
  const bool is_message = route.starts_with(kMessagesPrefix);
  return (is_message ? MessagesErrorResponse : ErrorResponse)(error,
                                                              RetryAfterSeconds(error.wait_s));
}

// The wait until then, spread by a fifth so that clients do not come back together.
int ApiServer::Impl::RetryAfterSeconds(std::optional<double> known) {
  const double predicted = options_.predicted_wait_s ? options_.predicted_wait_s() : 1.0;
  const double wait = known.value_or(predicted);
  return static_cast<int>(
      std::lround(std::clamp(wait * (0.8 + 0.4 * ids_.Spread(num_calls_)), 1.0, 60.0)));
}

bool ApiServer::Impl::IsServed(std::string_view name) const {
  const auto& names = options_.served_names;
  return name.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

ApiOr<JsonValue> ApiServer::Impl::ParseBody(const Call& call) const {
  absl::StatusOr<JsonValue> body = protocol::ParseJson(call.request.body, options_.json_limits);
  if (!body.ok()) return InvalidJson(std::string(protocol::StatusText(body.status())));
  if (!body->IsObject()) return InvalidJson("the body must be a JSON object");
  return *std::move(body);
}

void ApiServer::Impl::CountUnknown(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    Emit({ApiEvent::Kind::kUnknownField, {}, {}, name, 0});
    if (logged_fields_.size() >= kLoggedFieldsMax || !logged_fields_.insert(name).second) continue;
    SKEIN_LOG(kInfo, "unknown request field is ignored").Field("field", name.substr(0, 64));
  }
}

std::optional<ApiError> ApiServer::Impl::CheckBeforeEncoding(const Call& call,
                                                             const GenerationParams& params,
                                                             size_t text_bytes) {
  if (!IsServed(params.model)) return ModelNotFound(params.model);
  if (params.stream && call.request.minor_version == 0) {
    return InvalidValue("stream", "stream needs HTTP/1.1; HTTP/1.0 has no chunked bodies");
  }
  if (is_draining_) return Draining();
  const int32_t most = options_.request_limits.max_model_len;
  if (auto error = CheckTextSize(text_bytes, tokenizer_, most)) return error;
  // A key that may have nothing now is told so before its prompt is tokenised.
  return limiter_.Check(call.key(), {1, params.n}, call.arrival);
}

// What a generation has before its choices are known.
Generation::Setup ApiServer::Impl::SetupOf(const Call& call, const GenerationParams& params,
                                           RequestForm form) {
  Generation::Setup setup;
  setup.identity.form = form;
  setup.identity.id = ids_.AnswerId(form, call.number);
  setup.identity.model = params.model.empty() ? options_.served_names.front() : params.model;
  setup.identity.fingerprint = options_.fingerprint;
  setup.identity.names_reasoning = options_.names_reasoning;
  setup.identity.created = options_.unix_time();
  setup.params = params;
  setup.headers = call.headers;
  setup.route = call.route;
  setup.egress_bytes_max = options_.http_limits.egress_bytes_max;
  setup.courier = courier_;
  setup.arrival = call.arrival;
  setup.flights = options_.flights;
  setup.retry_after_s = [this] { return RetryAfterSeconds(); };
  return setup;
}

std::optional<ApiError> ApiServer::Impl::Submit(Call& call, GenerationParams params,
                                                GenerationInput input) {
  auto deadline = DeadlineOf(call.request.Header("x-request-timeout"), call.key(), call.arrival);
  if (const auto* error = std::get_if<ApiError>(&deadline)) return *error;
  const RequestLimits& limits = options_.request_limits;
  SubmissionParts parts{tokenizer_, chat_, ids_, limits.max_model_len, limits.vocab_size, {}, {}};
  // The first sequence has the number of the call.
  parts.next_number = [this, next = call.number]() mutable {
    return next != 0 ? std::exchange(next, 0) : ++num_calls_;
  };
  parts.on_call = [this, tenant = call.key().tenant](ChatToolCall done) {
    call_texts_.Keep(tenant, std::move(done));
  };
  parts.key = &call.key();
  parts.policy = options_.policy;
  parts.arrival = call.arrival;
  parts.deadline = std::get<std::optional<Clock::time_point>>(deadline);
  Generation::Setup setup = SetupOf(call, params, input.form);
  const bool streams = params.stream;
  auto made = MakeSubmission(std::move(params), std::move(input), parts);
  if (const auto* error = std::get_if<ApiError>(&made)) return *error;
  auto& submission = std::get<Submission>(made);
  setup.choices = std::move(submission.choices);
  const KeyDemand demand = DemandOf(submission);
  if (auto error = limiter_.Check(call.key(), demand, call.arrival)) return error;
  setup.on_end = [this, route = call.route, streams, demand, holder = call.request.attachment,
                  key = &call.key()](const GenerationEnd& end) {
    limiter_.End(*key, demand, static_cast<uint64_t>(end.completion_tokens), Clock::now());
    EmitEnd([this](const ApiEvent& event) { Emit(event); }, route, end, streams);
    if (end.status == 499) SKEIN_LOG(kInfo, "client closed the request").Field("route", route);
  };
  setup.on_event = [this](GenerationEvent event, size_t count) { Emit(EventOf(event, count)); };
  const auto generation =
      std::make_shared<Generation>(std::move(setup), tokenizer_, front_door_, call.exchange);
  for (size_t i = 0; i < submission.requests.size(); ++i) {
    submission.requests[i].sink = generation->SinkOf(i);
    const absl::Status accepted = front_door_.TrySubmit(std::move(submission.requests[i]));
    if (accepted.ok()) continue;
    generation->Abandon(i);
    return FromStatus(accepted);
  }
  limiter_.Begin(call.key(), demand, call.arrival);
  generation->Watch();
  if (streams) Emit({ApiEvent::Kind::kStreamOpened, call.route, "POST", {}, 0});
  generation->Start();
  return std::nullopt;
}

ApiOr<ChatPrompt> ApiServer::Impl::Render(const Call& call, ChatRequest* request) {
  for (ChatMessage& message : request->conversation.messages) {
    for (ChatToolCall& tool_call : message.tool_calls)
      call_texts_.Restore(call.key().tenant, &tool_call);
  }
  // Tools are shown and may not be called: the token that every call begins with is masked.
  const bool shows_tools = !request->conversation.tool_schemas.empty();
  if (shows_tools && request->tools.empty()) MaskToken(chat_.dsml_id(), &request->params.edits);
  absl::StatusOr<ChatPrompt> prompt = chat_.Render(request->conversation);
  if (prompt.ok()) return *std::move(prompt);
  ApiError error = FromStatus(prompt.status());
  error.param = absl::IsUnimplemented(prompt.status()) && shows_tools ? "tools" : "messages";
  return error;
}

void ApiServer::Impl::HandleChat(Call& call) {
  auto parsed = ParseChatRequest(call.body, options_.request_limits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(call, *error);
  Converse(call, std::move(std::get<ChatRequest>(parsed)), RequestForm::kChat);
}

void ApiServer::Impl::HandleMessages(Call& call) {
  auto parsed = ParseMessagesRequest(call.body, options_.request_limits, MessagesUse::kAnswer);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(call, *error);
  Converse(call, std::move(std::get<ChatRequest>(parsed)), RequestForm::kMessages);
}

void ApiServer::Impl::HandleCountTokens(Call& call) {
  auto parsed = ParseMessagesRequest(call.body, options_.request_limits, MessagesUse::kCount);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(call, *error);
  ChatRequest& request = std::get<ChatRequest>(parsed);
  CountUnknown(request.unknown_fields);
  if (!IsServed(request.params.model)) return SendError(call, ModelNotFound(request.params.model));
  if (const auto error = CheckTextSize(TextBytes(request.conversation), tokenizer_,
                                       options_.request_limits.max_model_len)) {
    return SendError(call, *error);
  }
  auto prompt = Render(call, &request);
  if (const auto* error = std::get_if<ApiError>(&prompt)) return SendError(call, *error);
  SendJson(call, Concat("{\"input_tokens\":", std::get<ChatPrompt>(prompt).ids.size(), "}"));
}

void ApiServer::Impl::Converse(Call& call, ChatRequest request, RequestForm form) {
  CountUnknown(request.unknown_fields);
  if (request.has_idle_penalties && !std::exchange(logged_penalties_, true)) {
    SKEIN_LOG(kInfo, "penalties have no effect while thinking is on").Field("route", call.route);
  }
  const size_t text_bytes = TextBytes(request.conversation);
  if (const auto error = CheckBeforeEncoding(call, request.params, text_bytes)) {
    return SendError(call, *error);
  }
  auto rendered = Render(call, &request);
  if (const auto* error = std::get_if<ApiError>(&rendered)) return SendError(call, *error);
  ChatPrompt& prompt = std::get<ChatPrompt>(rendered);
  const Clock::time_point begin = Clock::now();
  auto constraint = constraints_.Make(request, prompt.starts_in_reasoning);
  if (!request.tools.empty()) CountGrammar(constraint.index() == 0 ? "ok" : "too_complex", begin);
  if (const auto* error = std::get_if<ApiError>(&constraint)) return SendError(call, *error);
  GenerationInput input{form, {}};
  input.prompts.push_back({std::move(prompt.ids)});
  input.starts_in_reasoning = prompt.starts_in_reasoning;
  input.tools = std::move(request.tools);
  input.constraint = std::get<0>(std::move(constraint));
  const auto error = Submit(call, std::move(request.params), std::move(input));
  if (error.has_value()) SendError(call, *error);
}

void ApiServer::Impl::CountGrammar(std::string_view result, Clock::time_point begin) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  Emit({ApiEvent::Kind::kGrammar, {}, {}, result, 0, seconds});
}

void ApiServer::Impl::HandleCompletion(Call& call) {
  auto parsed = ParseCompletionRequest(call.body, options_.request_limits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return SendError(call, *error);
  CompletionRequest& request = std::get<CompletionRequest>(parsed);
  CountUnknown(request.unknown_fields);
  GenerationInput input{RequestForm::kCompletion, {}};
  for (const RawPrompt& prompt : request.prompts) {
    if (const auto error = CheckBeforeEncoding(call, request.params, prompt.text.size())) {
      return SendError(call, *error);
    }
    if (!call.key().special_ids) {
      if (const auto error = RefuseSpecialIds(prompt, tokenizer_)) return SendError(call, *error);
    }
    auto tokens = EncodePrompt(tokenizer_, chat_.bos_id(), prompt, request.echo);
    if (const auto* error = std::get_if<ApiError>(&tokens)) return SendError(call, *error);
    input.prompts.push_back(std::move(std::get<PromptTokens>(tokens)));
  }
  const auto error = Submit(call, std::move(request.params), std::move(input));
  if (error.has_value()) SendError(call, *error);
}

void ApiServer::Impl::SendOr(Call& call, ApiOr<std::string> body) {
  if (const auto* error = std::get_if<ApiError>(&body)) return SendError(call, *error);
  SendJson(call, std::move(std::get<std::string>(body)));
}

void ApiServer::Impl::HandleTokenize(Call& call) {
  SendOr(call, Tokenized(call.body, options_.request_limits, tokenizer_, chat_));
}

void ApiServer::Impl::HandleDetokenize(Call& call) {
  SendOr(call, Detokenized(call.body, options_.request_limits, tokenizer_));
}

void ApiServer::Impl::HandleModels(Call& call) {
  std::string list;
  for (const std::string& name : options_.served_names) {
    list += (list.empty() ? "" : ",") +
            ModelJson(name, created_, options_.request_limits.max_model_len);
  }
  SendJson(call, "{\"object\":\"list\",\"data\":[" + list + "]}");
}

void ApiServer::Impl::HandleModel(Call& call) {
  const std::string name = protocol::PercentDecoded(call.request.path.substr(kModelsPrefix.size()));
  if (name.empty() || !IsServed(name)) return SendError(call, ModelNotFound(name));
  SendJson(call, ModelJson(name, created_, options_.request_limits.max_model_len));
}

void ApiServer::Impl::HandleMetrics(Call& call) {
  HttpResponse response;
  response.content_type = options_.metrics_content_type;
  response.body = options_.metrics_text ? options_.metrics_text() : "";
  Send(call, std::move(response));
}

void ApiServer::Impl::HandleVersion(Call& call) { SendJson(call, options_.version_json); }

void ApiServer::Impl::HandleHealth(Call& call, HealthProbe probe) {
  absl::Status status = options_.health ? options_.health(probe) : absl::OkStatus();
  if (is_draining_ && probe == HealthProbe::kReady) status = absl::UnavailableError("draining");
  Send(call, HealthResponse(status, RetryAfterSeconds()));
}

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Create(Options options,
                                                             const Tokenizer& tokenizer,
                                                             const ChatTemplate& chat,
                                                             FrontDoor& front_door) {
  if (options.served_names.empty() || !options.unix_time) {
    return absl::InvalidArgumentError(
        "the API server needs at least one served model name and a clock");
  }
  auto impl = std::make_unique<Impl>(std::move(options), tokenizer, chat, front_door);
  const absl::Status listening = impl->Listen();
  if (!listening.ok()) return listening;
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ApiServer::~ApiServer() { Stop(); }

void ApiServer::Start() { impl_->http().Start(); }

void ApiServer::Drain(std::function<void()> done) {
  impl_->http().Post([impl = impl_.get()] { impl->StartDraining(); });
  impl_->http().Drain(std::move(done));
}

void ApiServer::Stop() { impl_->Stop(); }

void ApiServer::Post(std::function<void()> function) { impl_->http().Post(std::move(function)); }

size_t ApiServer::mailbox_depth() const { return impl_->courier().mailbox_depth(); }

uint16_t ApiServer::port() const { return impl_->http().port(); }

}  // namespace skein::coordinator
