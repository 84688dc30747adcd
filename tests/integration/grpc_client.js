// Asks a gateway by @grpc/grpc-js: `node grpc_client.js HOST:PORT PROTO QUESTIONS TEXT`.
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, proto, questions, text] = process.argv.slice(2);
const { inference } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true }));
const client = new inference.GRPCInferenceService(address, grpc.credentials.createInsecure());

function request(words, fields) {
  const columns = { question: words, text: words.map(() => text) };
  const inputs = Object.entries(columns).map(([name, column]) => ({
    name,
    datatype: "BYTES",
    shape: [column.length],
    contents: { bytes_contents: column.map((word) => Buffer.from(word)) },
  }));
  return { model_name: "builtin", inputs, ...fields };
}

function answersOf(response) {
  const answer = response.outputs.find((output) => output.name === "answer");
  return answer.contents.bytes_contents.map((bytes) => bytes.toString());
}

function call(fields) {
  return new Promise((resolve, reject) =>
    client.ModelInfer(request(JSON.parse(questions), fields), (error, response) =>
      error ? reject(error) : resolve(response),
    ),
  );
}

function stream() {
  return new Promise((resolve, reject) => {
    const told = {};
    const its = client.ModelStreamInfer();
    its.on("data", ({ infer_response: one }) => (told[one.id] = answersOf(one)[0]));
    its.on("error", reject);
    its.on("end", () => resolve(told));
    JSON.parse(questions).forEach((word, id) => its.write(request([word], { id: String(id) })));
    its.end();
  });
}

(async () => {
  const answers = answersOf(await call({}));
  const streamed = await stream();
  const status = await call({ model_name: "other" }).catch((error) => error.code);
  console.log(JSON.stringify({ answers, streamed, status }));
  client.close();
})();
