import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The official client as a program that does what it is told: a line of standard input is a request, its words separated by tabs.
 *  Answers are lines, too: SENT, READ, VALUE, then DONE or FAILED. What running consumers get comes in between, as GOT with the consumer's name.
 *  tests/compat/go/main.go is the same program around the Go client; the lite pull consumer is Java's alone. */
public class ClientPeer {
    static String nameServer;
    static int instances;
    static final List<String> RULES = List.of("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH");
    static final Map<String, DefaultMQPushConsumer> pushing = new HashMap<>();
    static final Map<String, DefaultLitePullConsumer> pulling = new HashMap<>();

    public static void main(String[] args) throws Exception {
        nameServer = args[0];
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                run(line.split("\t"));
                say("DONE");
            } catch (Throwable error) {
                say("FAILED", String.valueOf(error).replaceAll("\\s+", " "));
            }
        }
        System.exit(0);
    }

    static void run(String[] words) throws Exception {
        switch (words[0]) {
            case "send": send(words[1], words[2], Integer.parseInt(words[3]), words[4], words[5]); break;
            case "push": push(words); break;
            case "stop":
                pushing.get(words[1]).getDefaultMQPushConsumerImpl().persistConsumerOffset();
                pushing.get(words[1]).shutdown();
                break;
            case "pull": pull(words); break;
            case "view": view(words[1], words[2]); break;
            case "lite": lite(words); break;
            case "lite-poll": poll(pulling.get(words[1]), Integer.parseInt(words[2])); break;
            case "lite-seek": seek(pulling.get(words[1]), words[2], Integer.parseInt(words[3]), words[4]); break;
            case "lite-commit": pulling.get(words[1]).commitSync(); break;
            case "lite-committed": say("VALUE", pulling.get(words[1]).committed(queue(pulling.get(words[1]), words[2], Integer.parseInt(words[3])))); break;
            case "lite-stop": pulling.get(words[1]).shutdown(); break;
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(line.length() == 0 ? "" : "\t").append(word);
        System.out.println(line);
        System.out.flush();
    }

    /** A client of its own for each use: clients with one name share connections and more. */
    static String instance() {
        return "java-" + ProcessHandle.current().pid() + "-" + instances++;
    }

    static void sent(SendResult result) {
        say("SENT", result.getSendStatus(), result.getMsgId(), result.getOffsetMsgId(), result.getMessageQueue().getBrokerName(),
            result.getMessageQueue().getQueueId(), result.getQueueOffset());
    }

    static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("peer-producer", Peer.credentials());
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(instance());
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    /** mode: sync, async, oneway, batch, key (argument: how many keys), queue (its number), delay (the level), large. */
    static void send(String topic, String mode, int count, String tag, String argument) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            CountDownLatch pending = new CountDownLatch(mode.equals("async") ? count : 0);
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                StringBuilder body = new StringBuilder("body-" + i);
                if (mode.equals("large")) {
                    body.append('-');
                    for (int times = 0; times < 900; times++) body.append("0123456789");
                }
                Message message = new Message(topic, tag, "key-" + i, body.toString().getBytes(StandardCharsets.UTF_8));
                message.putUserProperty("number", String.valueOf(i));
                switch (mode) {
                    case "sync": case "large": sent(producer.send(message)); break;
                    case "oneway": producer.sendOneway(message); break;
                    case "batch": batch.add(message); break;
                    case "key": sent(producer.send(message, new SelectMessageQueueByHash(), "k" + i % Integer.parseInt(argument))); break;
                    case "queue": sent(producer.send(message, ClientPeer::byNumber, Integer.parseInt(argument))); break;
                    case "delay":
                        message.setDelayTimeLevel(Integer.parseInt(argument));
                        sent(producer.send(message));
                        break;
                    case "async":
                        producer.send(message, new SendCallback() {
                            public void onSuccess(SendResult result) { sent(result); pending.countDown(); }
                            public void onException(Throwable error) { error.printStackTrace(); }
                        });
                        break;
                    default: throw new IllegalArgumentException(mode);
                }
            }
            if (mode.equals("batch")) sent(producer.send(batch));
            if (mode.equals("oneway")) Thread.sleep(200); // nobody tells when they have left
            if (!pending.await(30, TimeUnit.SECONDS)) throw new IllegalStateException("sends were not answered");
        } finally {
            producer.shutdown();
        }
    }

    static MessageQueue byNumber(List<MessageQueue> queues, Message message, Object number) {
        for (MessageQueue queue : queues) if (queue.getQueueId() == (Integer) number) return queue;
        throw new IllegalArgumentException("no queue " + number);
    }

    static Object[] line(String kind, String name, MessageExt message, int size) {
        List<Object> words = new ArrayList<>();
        words.add(kind);
        if (name != null) words.add(name);
        Collections.addAll(words, message.getQueueId(), message.getQueueOffset(), message.getReconsumeTimes(), message.getTags(), message.getKeys(),
            message.getMsgId(), size, new String(message.getBody(), StandardCharsets.UTF_8));
        return words.toArray();
    }

    /** Whether the listener fails: messages "again…" at their first delivery, "dead…" always. */
    static boolean fails(String name, List<MessageExt> messages) {
        boolean fails = false;
        for (MessageExt message : messages) {
            say(line("GOT", name, message, messages.size()));
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            fails |= body.startsWith("dead") || body.startsWith("again") && message.getReconsumeTimes() == 0;
        }
        return fails;
    }

    /** Words: push, name, topic, group, expression, mode (concurrent, orderly, broadcasting, or a rule of allocation), from (first, last, yyyyMMddHHmmss), size of batches, maximum of reconsume times. */
    static void push(String[] words) throws Exception {
        String name = words[1];
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[3], Peer.credentials(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance());
        consumer.subscribe(words[2], words[4]);
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(words[7]));
        consumer.setMaxReconsumeTimes(Integer.parseInt(words[8]));
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.setPollNameServerInterval(1000); // a look-up that failed at the start is made again after this time only
        switch (words[6]) {
            case "first": consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); break;
            case "last": consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET); break;
            default:
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
                consumer.setConsumeTimestamp(words[6]);
        }
        if (words[5].equals("broadcasting")) ConsumerPeer.broadcast(consumer);
        if (RULES.contains(words[5])) consumer.setAllocateMessageQueueStrategy(ConsumerPeer.strategy(words[5]));
        if (words[5].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(100);
                return fails(name, messages) ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return fails(name, messages) ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        pushing.put(name, consumer);
    }

    /** Words: pull, topic, group, broker, queue, offset, count, offset to store. Says what is stored with the broker in the end. */
    static void pull(String[] words) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(words[2], Peer.credentials());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance());
        consumer.start();
        try {
            MessageQueue queue = new MessageQueue(words[1], words[3], Integer.parseInt(words[4]));
            PullResult result = consumer.pull(queue, "*", Long.parseLong(words[5]), Integer.parseInt(words[6]));
            if (result.getMsgFoundList() != null) for (MessageExt message : result.getMsgFoundList()) say(line("READ", null, message, 1));
            say("VALUE", result.getPullStatus().ordinal(), result.getNextBeginOffset(), result.getMinOffset(), result.getMaxOffset());
            consumer.updateConsumeOffset(queue, Long.parseLong(words[7]));
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(Collections.singleton(queue));
            long stored = -1; // it is sent one-way
            for (int times = 0; times < 100 && stored != Long.parseLong(words[7]); times++) {
                stored = consumer.fetchConsumeOffset(queue, true);
                Thread.sleep(20);
            }
            say("VALUE", stored);
        } finally {
            consumer.shutdown();
        }
    }

    /** Find a message by either kind of its ids. */
    static void view(String topic, String id) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            say(line("READ", null, producer.viewMessage(topic, id), 1));
        } finally {
            producer.shutdown();
        }
    }

    /** Words: lite, name, group, whether it commits by itself, assign | subscribe | watch, topic, expression. */
    static void lite(String[] words) throws Exception {
        String name = words[1];
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(words[2], Peer.credentials());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance());
        consumer.setAutoCommit(Boolean.parseBoolean(words[3]));
        consumer.setAutoCommitIntervalMillis(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setTopicMetadataCheckIntervalMillis(200);
        consumer.setPollNameServerInterval(200);
        if (words[4].equals("subscribe")) consumer.subscribe(words[5], words[6]);
        if (words[4].equals("watch")) consumer.registerTopicMessageQueueChangeListener(words[5], (topic, queues) -> say("GOT", name, queues.size()));
        consumer.start();
        if (words[4].equals("assign")) consumer.assign(consumer.fetchMessageQueues(words[5]));
        pulling.put(name, consumer);
    }

    static MessageQueue queue(DefaultLitePullConsumer consumer, String topic, int number) throws Exception {
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        for (MessageQueue queue : queues) if (queue.getQueueId() == number) return queue;
        throw new IllegalArgumentException("no queue " + number);
    }

    /** Until there are so many messages, or none for a while. */
    static void poll(DefaultLitePullConsumer consumer, int count) {
        long end = System.currentTimeMillis() + 30_000;
        for (int found = 0; found < count && System.currentTimeMillis() < end; ) {
            for (MessageExt message : consumer.poll(500)) {
                say(line("READ", null, message, 1));
                found++;
            }
        }
    }

    /** where: begin, end, a number, or @ and a time in ms, whose offset is asked for first. */
    static void seek(DefaultLitePullConsumer consumer, String topic, int number, String where) throws Exception {
        MessageQueue queue = queue(consumer, topic, number);
        switch (where) {
            case "begin": consumer.seekToBegin(queue); break;
            case "end": consumer.seekToEnd(queue); break;
            default:
                long offset = where.startsWith("@") ? consumer.offsetForTimestamp(queue, Long.parseLong(where.substring(1))) : Long.parseLong(where);
                consumer.seek(queue, offset);
                say("VALUE", offset);
        }
    }
}
