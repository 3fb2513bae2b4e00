import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official client as requester and replier: NAMESERVER OWN_TOPIC TOPIC... It replies "java: BODY" to requests in
 * OWN_TOPIC, and sends three requests to each TOPIC, printing the replies. Lives until its standard input ends.
 */
public class RequestPeer {
    static final int REQUESTS = 3;
    /** Open until the sends of that many replies have ended: the requester may have a reply before its sender. */
    static final CountDownLatch REPLIES = new CountDownLatch(REQUESTS);

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-requests", Peer.credentials());
        producer.setNamesrvAddr(args[0]);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-repliers", Peer.credentials(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) reply(producer, message);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int at = 2; at < args.length; at++) {
            for (int number = 0; number < REQUESTS; number++) {
                byte[] body = (number < 2 ? "q" + number : "x".repeat(10_000)).getBytes(StandardCharsets.UTF_8);
                Message message = new Message(args[at], body);
                // By a selector: 4.9.4 returns the request itself from the request without one.
                Message answer = producer.request(message, (queues, asked, none) -> queues.get(0), null, 20_000);
                String text = new String(answer.getBody(), StandardCharsets.UTF_8);
                say("REPLY", args[at], text.length() > 100 ? text.length() : text, answer.getTopic());
            }
        }
        if (!REPLIES.await(20, TimeUnit.SECONDS)) say("FAILED", "sends of replies that have not ended");
        say("READY");
        while (System.in.read() >= 0) { }
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    static void reply(DefaultMQProducer producer, MessageExt request) {
        try {
            byte[] body = ("java: " + new String(request.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
            say("REPLIED", producer.send(MessageUtil.createReplyMessage(request, body), 5_000).getSendStatus());
        } catch (Exception error) {
            say("FAILED", String.valueOf(error).replaceAll("\\s+", " "));
        } finally {
            REPLIES.countDown();
        }
    }

    static synchronized void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(line.length() == 0 ? "" : "\t").append(word);
        System.out.println(line);
        System.out.flush();
    }
}
