import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The official Java client of RocketMQ 5. GrpcPeer ENDPOINT tls|plain SCENARIO,… TOPIC GROUP COUNT; what the
 * scenarios do is in tests/support/grpc_scenarios.py.
 */
public class GrpcPeer {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Duration AWAIT = Duration.ofSeconds(5);
    static ClientConfiguration configuration;
    static int count;

    final String scenario;
    final String topic;
    final String group;
    boolean done;

    GrpcPeer(String scenario, String topic, String group) {
        this.scenario = scenario;
        this.topic = topic + "-" + scenario;
        this.group = group + "-" + scenario;
    }

    public static void main(String[] arguments) throws Exception {
        var builder = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl(arguments[1].equals("tls")).setRequestTimeout(Duration.ofSeconds(10));
        String accessKey = System.getenv("PEER_ACCESS_KEY");
        if (accessKey != null) builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, System.getenv("PEER_SECRET_KEY")));
        configuration = builder.build();
        count = Integer.parseInt(arguments[5]);
        List<Thread> threads = new ArrayList<>();
        for (String scenario : arguments[2].split(",")) {
            Thread thread = new Thread(new GrpcPeer(scenario, arguments[3], arguments[4])::run);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.exit(0);
    }

    void run() {
        try {
            switch (scenario) {
                case "send-normal": case "send-fifo": case "send-delay": case "recall": send(); break;
                case "send-transaction": sendTransactions(); break;
                case "send-refused": sendRefused(); break;
                case "simple-receive-ack": receiveAndAck(); break;
                case "simple-change-invisible": changeInvisible(); break;
                case "filter-tag": filter(new FilterExpression("TagA || TagB"), count - count / 3); break;
                case "filter-sql":
                    filter(new FilterExpression("number >= 3 AND color = 'red'", FilterExpressionType.SQL92),
                        (count - 3) / 2);
                    break;
                case "simple-fifo": receiveInOrder(); break;
                case "push-consume": case "push-fifo": case "push-dead": case "push-fifo-dead": push(); break;
                default: throw new IllegalArgumentException(scenario);
            }
            sayDone();
        } catch (Throwable error) {
            say("failed", "error", String.valueOf(error));
        }
    }

    Producer producer(TransactionChecker checker) throws Exception {
        var builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic);
        return checker == null ? builder.build() : builder.setTransactionChecker(checker).build();
    }

    MessageBuilder message(String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    void send() throws Exception {
        try (Producer producer = producer(null)) {
            for (int number = 0; number < count; number++) {
                String body = scenario + "-" + number;
                MessageBuilder builder = message(body);
                long due = 0;
                switch (scenario) {
                    case "send-normal":
                        builder.setTag(number % 2 == 0 ? "TagA" : "TagB").setKeys("key-" + number, "other-" + number)
                            .addProperty("number", "" + number).addProperty("text", "Grüße 你好");
                        break;
                    case "send-fifo":
                        builder.setMessageGroup("group-" + number % 2);
                        break;
                    default:
                        due = System.currentTimeMillis() + (scenario.equals("recall") ? 8000 : 3000);
                        builder.setDeliveryTimestamp(due);
                }
                SendReceipt receipt = producer.send(builder.build());
                say("sent", "id", receipt.getMessageId(), "body", body, "due", due);
                if (scenario.equals("recall") && number % 2 == 1) {
                    var recalled = producer.recallMessage(topic, receipt.getRecallHandle());
                    say("recalled", "id", recalled.getMessageId(), "body", body);
                }
            }
        }
    }

    void sendRefused() throws Exception {
        try (Producer producer = producer(null)) {
            Message delayed = message("delayed").setDeliveryTimestamp(System.currentTimeMillis() + 3000).build();
            try {
                producer.send(delayed);
                say("sent", "body", "delayed");
            } catch (Exception error) {
                say("refused", "error", String.valueOf(error));
            }
            say("sent", "id", producer.send(message("plain").build()).getMessageId(), "body", "plain");
        }
    }

    void sendTransactions() throws Exception {
        Set<String> open = new HashSet<>();
        for (int number = 2; number < count; number += 3) {
            open.add("unknown-" + number);
        }
        CountDownLatch checks = new CountDownLatch(open.size());
        TransactionChecker checker = view -> {
            String body = body(view);
            int number = Integer.parseInt(body.substring(body.indexOf('-') + 1));
            boolean commits = body.startsWith("commit") || body.startsWith("unknown") && number % 2 == 0;
            TransactionResolution resolution =
                commits ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            say("checked", "id", view.getMessageId(), "body", body, "resolution", resolution);
            synchronized (open) {
                if (open.remove(body)) {
                    checks.countDown();
                }
            }
            return resolution;
        };
        try (Producer producer = producer(checker)) {
            for (int number = 0; number < count; number++) {
                String how = List.of("commit", "rollback", "unknown").get(number % 3);
                String body = how + "-" + number;
                Transaction transaction = producer.beginTransaction();
                SendReceipt receipt = producer.send(message(body).setKeys("key-" + number).build(), transaction);
                say("sent", "id", receipt.getMessageId(), "body", body);
                if (how.equals("commit")) {
                    transaction.commit();
                } else if (how.equals("rollback")) {
                    transaction.rollback();
                }
            }
            if (!checks.await(60, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not asked about " + open);
            }
            sayDone();
            Thread.sleep(20_000); // the last answer is on its way, and the broker may ask again
        }
    }

    SimpleConsumer simpleConsumer(FilterExpression expression) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(AWAIT).setSubscriptionExpressions(Map.of(topic, expression)).build();
    }

    /** An error is printed and counts as no messages, as an application would do. */
    List<MessageView> receive(SimpleConsumer consumer, int invisibleSeconds) throws InterruptedException {
        return receive(consumer, 10, invisibleSeconds);
    }

    List<MessageView> receive(SimpleConsumer consumer, int most, int invisibleSeconds)
        throws InterruptedException {
        say("asked");
        try {
            return consumer.receive(most, Duration.ofSeconds(invisibleSeconds));
        } catch (Exception error) {
            say("again", "error", String.valueOf(error));
            Thread.sleep(200);
            return List.of();
        }
    }

    void receiveAndAck() throws Exception {
        try (SimpleConsumer consumer = simpleConsumer(FilterExpression.SUB_ALL)) {
            for (int got = 0; got < count + 1;) {
                for (MessageView view : receive(consumer, 30)) {
                    got++;
                    sayGot(view);
                    if (!body(view).endsWith("-0") || view.getDeliveryAttempt() > 1) {
                        consumer.ack(view);
                    }
                }
            }
            receive(consumer, 30).forEach(this::sayGot);
        }
    }

    void changeInvisible() throws Exception {
        try (SimpleConsumer consumer = simpleConsumer(FilterExpression.SUB_ALL)) {
            for (int got = 0; got < 2 * count;) {
                for (MessageView view : receive(consumer, 300)) {
                    got++;
                    sayGot(view);
                    if (view.getDeliveryAttempt() == 1) {
                        consumer.changeInvisibleDuration(view, Duration.ofSeconds(2));
                    } else {
                        consumer.ack(view);
                    }
                }
            }
        }
    }

    void filter(FilterExpression expression, int expected) throws Exception {
        try (SimpleConsumer consumer = simpleConsumer(expression)) {
            for (int got = 0; got < expected;) {
                for (MessageView view : receive(consumer, 60)) {
                    got++;
                    sayGot(view);
                    consumer.ack(view);
                }
            }
            receive(consumer, 60).forEach(this::sayGot);
        }
    }

    void receiveInOrder() throws Exception {
        try (SimpleConsumer consumer = simpleConsumer(FilterExpression.SUB_ALL)) {
            MessageView held = null;
            int later = 0;
            for (int got = 0; got < count || held != null;) {
                for (MessageView view : receive(consumer, 1, 60)) {
                    sayGot(view);
                    if (got++ == 0) {
                        held = view;
                    } else {
                        ack(consumer, view);
                    }
                }
                if (held != null && later++ == 3) {
                    ack(consumer, held);
                    held = null;
                }
            }
        }
    }

    void ack(SimpleConsumer consumer, MessageView view) throws Exception {
        say("acked", "body", body(view)); // before it is: what comes next comes later
        consumer.ack(view);
    }

    void push() throws Exception {
        boolean dies = scenario.endsWith("-dead");
        int expected = scenario.equals("push-consume") ? count + count / 2 : count + 1;
        CountDownLatch got = new CountDownLatch(expected);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                sayGot(view);
                got.countDown();
                int number = Integer.parseInt(body(view).substring(body(view).lastIndexOf('-') + 1));
                boolean fails = scenario.equals("push-consume") ? number % 2 == 1 : number == 2;
                return fails && (dies || seen.add(body(view))) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        try (consumer) {
            if (!got.await(90, TimeUnit.SECONDS)) {
                throw new IllegalStateException(got.getCount() + " deliveries are missing");
            }
            Thread.sleep(2000); // what comes too much
            sayDone(); // to close takes as long as a poll
            Thread.sleep(dies ? 20_000 : 0); // the server makes the dead letter when it is asked for more
        }
    }

    void sayDone() {
        if (!done) {
            say("done");
        }
        done = true;
    }

    static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody().duplicate()).toString();
    }

    void sayGot(MessageView view) {
        say("got", "id", view.getMessageId(), "body", body(view), "attempt", view.getDeliveryAttempt(),
            "topic", view.getTopic(), "tag", view.getTag().orElse(null), "keys", view.getKeys(),
            "group", view.getMessageGroup().orElse(null), "properties", new TreeMap<>(view.getProperties()));
    }

    void say(String event, Object... fields) {
        StringBuilder line = new StringBuilder("{\"scenario\":" + json(scenario) + ",\"event\":" + json(event)
            + ",\"at\":" + System.currentTimeMillis());
        for (int index = 0; index < fields.length; index += 2) {
            line.append(',').append(json(fields[index])).append(':').append(json(fields[index + 1]));
        }
        synchronized (System.out) {
            System.out.write((line + "}\n").getBytes(StandardCharsets.UTF_8), 0,
                (line + "}\n").getBytes(StandardCharsets.UTF_8).length);
            System.out.flush();
        }
    }

    static String json(Object value) {
        if (value == null || value instanceof Number) {
            return String.valueOf(value);
        }
        List<String> parts = new ArrayList<>();
        if (value instanceof Collection) {
            ((Collection<?>) value).forEach(each -> parts.add(json(each)));
            return "[" + String.join(",", parts) + "]";
        }
        if (value instanceof Map) {
            ((Map<?, ?>) value).forEach((key, each) -> parts.add(json(key) + ":" + json(each)));
            return "{" + String.join(",", parts) + "}";
        }
        StringBuilder text = new StringBuilder("\"");
        for (char letter : value.toString().toCharArray()) {
            if (letter == '"' || letter == '\\') {
                text.append('\\').append(letter);
            } else if (letter < ' ') {
                text.append(String.format("\\u%04x", (int) letter));
            } else {
                text.append(letter);
            }
        }
        return text.append('"').toString();
    }
}
